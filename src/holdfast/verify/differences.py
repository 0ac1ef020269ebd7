"""The rows by which a run differs, as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from holdfast.verify.classes import Recovery
from holdfast.verify.outcome import RunOutcome
from holdfast.verify.values import plain_rows


def difference_lines(outcome: RunOutcome) -> Iterator[str]:
    """A line a sink that is not precise, then the first rows that it lacks (-) and has too many of (+)."""
    for verdict in outcome.verdicts:
        if verdict.recovery is Recovery.PRECISE:
            continue
        yield f"{verdict.sink}: {verdict.recovery.value} ({verdict.checked})"
        for sign, rows in (("-", verdict.missing), ("+", verdict.extra)):
            for row in plain_rows(rows):
                yield f"{sign} {json.dumps(row, ensure_ascii=False)}"
