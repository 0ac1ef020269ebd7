"""`holdfast failover STAGE`: have a standby take over, as if the primary had died."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.interfaces.cli.shared import AsJson, StageName, WorkDir, console, print_json, work_directory
from holdfast.ledger import groups
from holdfast.ledger.groups import GroupRow
from holdfast.ledger.ledger import Ledger


def failover(
    stage: StageName,
    work_dir: WorkDir = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is kept with the flow's events.")
    ] = "by hand",
    as_json: AsJson = False,
) -> None:
    """Let a standby take over the stage and all that run in the same process. The old primary is fenced off.

    Examples:

    - `holdfast failover totals`

    - `holdfast failover totals --reason "the host is to be restarted"`
    """
    root = work_directory(work_dir)
    ledger = Ledger(root)
    try:
        before = _group(ledger, stage)
        primary = _refuse_hopeless(ledger, before, stage)
        groups.ask_for_failover(ledger, before.group, primary, reason)
        after = _wait(ledger, before)
    finally:
        ledger.close()
    if as_json:
        facts = {"group": after.group, "before": before.primary, "primary": after.primary}
        print_json({**facts, "generation": after.generation})
        return
    console().print(
        f"{after.primary} leads group {after.group} (generation {after.generation}); {before.primary} is fenced off."
    )


def _group(ledger: Ledger, stage: str) -> GroupRow:
    with ledger.read() as tx:
        found = groups.all_groups(tx).values()
    for row in found:
        if stage in row.stages:
            return row
    names = ", ".join(name for row in found for name in row.stages)
    raise LedgerError(
        f"there is no stage {stage!r} in this flow", operation="fail over", hint=f"Its stages are {names}."
    )


def _refuse_hopeless(ledger: Ledger, row: GroupRow, stage: str) -> str:
    with ledger.read() as tx:
        workers = [worker for worker in groups.all_workers(tx) if worker.group == row.group]
    others = [w for w in workers if w.worker != row.primary and w.status != "starting" and w.process]
    if row.primary is None or not any(w.process and w.process.lives() for w in others):
        raise LedgerError(
            f"group {row.group!r} has no standby that could take over",
            operation="fail over",
            stage=stage,
            hint="Give the stage a policy with members=2; `holdfast workers` shows who stands by.",
        )
    return row.primary


def _wait(ledger: Ledger, before: GroupRow) -> GroupRow:
    deadline = time.monotonic() + limits.FAILOVER_MS_MAX / 1000
    while time.monotonic() < deadline:
        with ledger.read() as tx:
            row = groups.all_groups(tx)[before.group]
        if row.primary != before.primary:
            return row
        time.sleep(limits.WATCH_MS / 1000)
    raise LedgerError(
        "no supervisor has answered",
        operation="fail over",
        hint="Is `holdfast run` still there? It alone decides who leads; start it again.",
    )
