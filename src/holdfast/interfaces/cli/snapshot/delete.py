"""`holdfast snapshot delete`: let go of a snapshot that somebody asked for."""

from __future__ import annotations

from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, work_directory
from holdfast.interfaces.cli.snapshot import words
from holdfast.interfaces.cli.snapshot.words import Which
from holdfast.ledger import asked_snapshots


def delete(which: Which, work_dir: WorkDir = None, as_json: AsJson = False) -> None:
    """Forget a snapshot. What was kept only for it is deleted by the flow in its own time.

    Examples:

    - `holdfast snapshot delete before-upgrade`

    - `holdfast snapshot delete 7 --json`
    """
    one = asked_snapshots.delete(work_directory(work_dir), which)
    if as_json:
        print_json({"number": one.number, "name": one.name, "status": one.status})
        return
    console().print(f"{words.title(one.number, one.name)}, which was {one.status}, is forgotten.")
