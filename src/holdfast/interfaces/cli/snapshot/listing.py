"""`holdfast snapshot list`: the snapshots that are remembered, the newest last."""

from __future__ import annotations

from holdfast.core.size import size
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, table, work_directory
from holdfast.interfaces.cli.snapshot import words
from holdfast.ledger.snapshot_report import listed


def list_(work_dir: WorkDir = None, as_json: AsJson = False) -> None:
    """Show all snapshots that are remembered, and which of them are kept: these can be returned to.

    Examples:

    - `holdfast snapshot list`

    - `holdfast snapshot list --work-dir work/orders --json`
    """
    found = listed(work_directory(work_dir))
    if as_json:
        print_json(found)
        return
    shown = table(("number", "name", "status", "mode", "kept", "begun"), ("took", "bytes"), ("epochs",))
    for one in found["snapshots"]:
        shown.add_row(
            str(one["number"]),
            one["name"] or "",
            one["status"],
            one["mode"] or "",
            "yes" if one["kept"] else "no",
            one["begun"] or "",
            words.took(one["seconds"]),
            size(one["bytes"]),
            words.epochs(one["epochs"]),
        )
    out = console()
    if found["snapshots"]:
        out.print(shown)
    else:
        out.print(
            "There is no snapshot: no stage recovers by hf.snapshot(...), or the flow has not run with it yet."
        )
