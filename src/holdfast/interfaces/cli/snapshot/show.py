"""`holdfast snapshot show`: what a snapshot holds of every stage, and who needs it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.json import Json
from holdfast.core.size import size
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, work_directory
from holdfast.interfaces.cli.snapshot import words
from holdfast.interfaces.cli.snapshot.words import Which
from holdfast.ledger.snapshot_report import shown


def show(which: Which, work_dir: WorkDir = None, as_json: AsJson = False) -> None:
    """Show a snapshot: each stage's part, what was in flight between them, who needs it, or why it was aborted.

    Examples:

    - `holdfast snapshot show 7`

    - `holdfast snapshot show before-upgrade --json`
    """
    found = shown(work_directory(work_dir), which)
    if as_json:
        print_json(found)
        return
    console().print("\n".join(lines(found)), soft_wrap=True)


def lines(found: Json) -> Iterator[str]:
    """A snapshot as an indented tree."""
    mode = f", {found['mode']}" if found["mode"] else ""
    yield f"{words.title(found['number'], found['name'])}: {found['status']}{mode}"
    if found["reason"]:
        yield f"  aborted because: {found['reason']}"
    if found["begun"]:
        yield f"  begun: {found['begun']}"
    if found["committed"]:
        yield f"  complete: {found['committed']}, after {words.took(found['seconds'])}, {size(found['bytes'])}"
    yield f"  needed by: {', and '.join(found['needed_by']) or 'nobody'}"
    for stage, part in found["parts"].items():
        yield from _part(stage, part)
    for who in found["ahead"]:
        yield f"  ahead of it: {who['consumer']} has had epoch {who['had']} of {who['stage']}"


def _part(stage: str, part: Json) -> Iterator[str]:
    until = f"up to epoch {part['epoch']}" if part["epoch"] >= 0 else "nothing yet"
    yield f"  stage {stage}: {until}" + (f", {size(part['bytes'])}" if part["bytes"] is not None else "")
    for name, position in part["positions"].items():
        flying = part["in_flight"].get(name)
        yield f"    reads on: {name} from {position}" + (
            f"; in flight: epochs {words.span(*flying['epochs'])}, {flying['rows']:,} rows" if flying else ""
        )
