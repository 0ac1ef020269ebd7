"""Passes over what holds no rows: the cursors of a stage move in the ledger, and no job runs.

Invariants: nothing that holds rows is ever passed over; what only looks empty, because its rows were let go of, or because
a file has been written to since it was looked at, stops the flow. And nothing is left unread by a flow that is called idle.
"""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.errors import HoldfastError, StorageError
from holdfast.flow.prefixes import Input
from holdfast.ledger import epochs
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.offers import first_gone
from holdfast.ledger.unread import all_unread
from holdfast.runtime.context import Runtime
from holdfast.runtime.planning import PassOver
from holdfast.sources.contract import check_still_empty
from holdfast.spark.bind import BoundStage


def pass_over(rt: Runtime, stage: BoundStage, row: StageRow, empty: PassOver) -> None:
    """Leave positions without rows behind."""
    for origin in stage.spec.inputs:
        if origin.id in empty.ranges:
            check = _check_files if origin.kind == "source" else _check_kept
            check(rt, origin, *empty.ranges[origin.id])
    crashpoints.reach("pass.before")
    epochs.pass_over(rt.ledger, row, empty.ranges)
    crashpoints.reach("pass.after")
    rt.alarm.ring()


def check_all_read(rt: Runtime, tx: sa.Connection) -> None:
    """Refuse to call a flow idle, though nothing seems left to do, while anything is unread: it would be lost in silence.

    One that follows recorded plans reads what they read; it is looked at in the end by who gave them to it.
    """
    unread = all_unread(tx, rt.plan.cursors()) if rt.script.plans is None else []
    if unread:
        raise HoldfastError(
            f"nothing is left to do, and yet {'; '.join(map(str, unread))}",
            operation="settle",
            hint="This is a mistake in Holdfast, and nothing is lost: report it with the output of `holdfast status --json`.",
        )


def _check_files(rt: Runtime, origin: Input, start: int, stop: int) -> None:
    with rt.ledger.read() as tx:
        items = ledger_inputs.items(tx, origin.name, start, stop)
    check_still_empty(rt.sources[origin.name], items)


def _check_kept(rt: Runtime, origin: Input, start: int, stop: int) -> None:
    with rt.ledger.read() as tx:
        gone = first_gone(tx, origin.name, origin.port, start, stop)
    if gone is not None:
        raise StorageError(
            f"epoch {gone} of {origin.id} held rows and is no longer kept",
            operation="pass over",
            hint="Bring the work directory back from a backup, or start in a new one.",
        )
