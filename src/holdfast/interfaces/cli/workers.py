"""`holdfast workers`: the processes that run a flow, and those that stand by."""

from __future__ import annotations

from holdfast.interfaces.cli.shared import (
    AsJson,
    WorkDir,
    console,
    failover_line,
    print_json,
    table,
    work_directory,
)
from holdfast.ledger.roster import roster


def workers(work_dir: WorkDir = None, as_json: AsJson = False) -> None:
    """Show every group of stages with its workers: who leads, who stands by, and how often it has practised.

    Below them, who was replaced lately, and why.

    Examples:

    - `holdfast workers`

    - `holdfast workers --work-dir work/orders --json`
    """
    found = roster(work_directory(work_dir))
    if as_json:
        print_json(found)
        return
    shown = table(("group", "worker", "part", "status"), ("pid", "rehearsals"), ("stages",))
    for name, group in found["groups"].items():
        for worker in group["workers"] or [{}]:
            shown.add_row(
                f"{name} (generation {group['generation']})",
                worker.get("worker", ""),
                worker.get("part", "nobody"),
                _status(worker),
                str((worker.get("process") or {}).get("pid", "")),
                str(worker.get("rehearsals", "")),
                ", ".join(group["stages"]),
            )
    out = console()
    out.print(shown)
    for group in found["groups"].values():
        for one in group["failovers"]:
            out.print(failover_line(one), soft_wrap=True, markup=False, highlight=False)


def _status(worker: dict[str, object]) -> str:
    if not worker:
        return ""
    ended = worker["process"] is not None and not worker["lives"]
    return f"{worker['status']}, its process has ended" if ended else str(worker["status"])
