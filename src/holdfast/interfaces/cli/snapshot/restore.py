"""`holdfast snapshot restore`: bring all stages that were captured together back to one moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.core.json import Json
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, work_directory
from holdfast.interfaces.cli.snapshot import words
from holdfast.interfaces.cli.snapshot.words import Which
from holdfast.ledger import restoring
from holdfast.ledger.restoring import Restoration, Undoing


def restore(
    which: Which,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be undone, and change nothing.")
    ] = False,
    new_targets: Annotated[
        bool,
        typer.Option(
            "--new-targets", help="Set sinks back that have had more; the flow must then name other targets."
        ),
    ] = False,
    work_dir: WorkDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring the captured stages back to a snapshot, while nothing runs. Newer snapshots are gone with what they cover.

    It is refused if somebody outside has had more than the snapshot covers: what has left cannot be undone there.

    Examples:

    - `holdfast snapshot restore latest --dry-run`

    - `holdfast snapshot restore before-upgrade --new-targets`
    """
    root = work_directory(work_dir)
    do = restoring.preview if dry_run else restoring.restore
    found = do(root, which, new_targets=new_targets)
    if as_json:
        print_json(facts(found, dry_run))
        return
    console().print("\n".join(lines(found, dry_run)), soft_wrap=True)


def facts(found: Restoration, dry_run: bool) -> Json:
    """What was done, or would be, as JSON."""
    return {
        "flow": found.flow,
        "number": found.snapshot.number,
        "name": found.snapshot.name,
        "mode": found.snapshot.mode,
        "dry_run": dry_run,
        "stages": {
            stage: {
                "epoch": undoing.epoch,
                "head": undoing.head,
                "undone": undoing.undone,
                "reads_again": {
                    name: {"positions": [again.start, again.stop], "rows": again.rows}
                    for name, again in undoing.again.items()
                },
            }
            for stage, undoing in found.stages.items()
        },
        "new_targets": [
            {
                "sink": who.consumer.removeprefix("sink:"),
                "stage": who.stage,
                "had": who.had,
                "from": who.covered + 1,
            }
            for who in found.new_targets
        ],
        "gone": found.gone,
    }


def lines(found: Restoration, dry_run: bool) -> Iterator[str]:
    """What was done, or would be, for a person."""
    will = "would return" if dry_run else "returned"
    yield f"flow {found.flow} {will} to {words.title(found.snapshot.number, found.snapshot.name)}"
    for stage, undoing in found.stages.items():
        yield from _stage(stage, undoing)
    if found.snapshot.mode == "at_least_once":
        yield "Its stages did not wait for each other's markers: some rows will count twice."
    if found.gone:
        verb = "would be" if dry_run else "are"
        yield f"Newer snapshots {verb} gone, with what they covered: {', '.join(map(str, found.gone))}."
    for who in found.new_targets:
        yield (
            f"Sink {who.consumer.removeprefix('sink:')} has had epochs up to {who.had}, and is given them anew from "
            f"{who.covered + 1} on: name another target for it before the flow runs again. Its old one refuses."
        )


def _stage(stage: str, undoing: Undoing) -> Iterator[str]:
    count = undoing.undone
    to = f"to epoch {undoing.epoch}" if undoing.epoch >= 0 else "to its beginning"
    yield f"  stage {stage}: {to}, {count or 'no'} epoch{'' if count == 1 else 's'} undone"
    for name, again in undoing.again.items():
        yield f"    reads again: {name} {words.span(again.start, again.stop)}, {again.rows:,} rows"
