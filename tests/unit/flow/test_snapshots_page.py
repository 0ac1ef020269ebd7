"""docs/SNAPSHOTS.md has the settings, the modes and the crash points that there are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import holdfast as hf
from holdfast.core.crashpoints import POINTS
from holdfast.flow.policies import SNAPSHOT_MODES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "SNAPSHOTS.md").read_text()


def test_the_settings_are_those_of_the_function_with_their_defaults() -> None:
    settings = inspect.signature(hf.snapshot).parameters
    written = ", ".join(f"{name}={one.default!r}" for name, one in settings.items()).replace("'", '"')
    assert f"`hf.snapshot({written})`" in PAGE
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(settings)


def test_the_modes_are_those_that_there_are() -> None:
    assert tuple(re.findall(r'^\| `"(\w+)"` \|', PAGE, re.MULTILINE)) == SNAPSHOT_MODES


def test_the_protocol_names_every_point_at_which_it_is_crashed() -> None:
    named = re.findall(r"`((?:snapshot|ship|sink)\.\w+)`", PAGE)
    assert set(named) <= set(POINTS)
    assert {point for point in POINTS if point.startswith("snapshot.")} <= set(named)
