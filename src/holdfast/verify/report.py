"""A campaign as a JSON file, for machines: what the page and the terminal show follows from it."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.verify.outcome import Campaign

STDOUT = Path("-")


def write(campaign: Campaign, path: Path) -> None:
    """Write the file, and the directories above it. Only ASCII, so that no text of any origin can break it."""
    text = json.dumps(campaign.to_json(), indent=1, allow_nan=False)
    if path == STDOUT:
        print(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
