"""Makes a stage's next plan: takes what the inputs offer, within bounds, and fixes the shape of the job."""

from __future__ import annotations

import time

import sqlalchemy as sa

from holdfast.core import limits
from holdfast.flow.planner import OUT, Input
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow, manifest_of
from holdfast.protocols.admission import Allowance, Offer, admit, holds_back
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.protocols.shape import aggregates_first
from holdfast.runtime.context import Runtime
from holdfast.spark.bind import BoundStage
from holdfast.spark.keys import even_boundaries

# Positions that one look at an input considers; an epoch that could take more takes them next time.
_OFFERS_MAX = 1_000


def next_plan(rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow) -> EpochPlan | None:
    """The plan of the epoch after the head, or None if there is nothing to do or a consumer is far behind."""
    consumers = rt.plan.consumers(stage.name)
    if holds_back(*ledger_inputs.unread_size(tx, consumers, stage.name, OUT)):
        return None
    ranges, rows = {}, 0
    for origin in stage.spec.inputs:
        start, offers = _offers(tx, stage, origin)
        taken = admit([Offer(unit.rows, unit.bytes) for unit in offers], _allowance(rt, origin))
        ranges[origin.id] = (start, start + taken)
        rows += sum(unit.rows for unit in offers[:taken])
    if rows == 0:
        return None
    before = manifest_of(tx, row, row.head) or {}
    return EpochPlan(
        ranges,
        rows,
        tuple(even_boundaries(rt.tasks)),
        aggregates_first(before.get("rows_in", 0), before.get("keys", 0) or limits.EPOCH_ROWS_MAX),
        stage.fingerprint,
        time.time_ns() // 1_000_000,
    )


def unread_rows(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> int:
    """Rows that a stage's inputs hold for it."""
    return sum(unit.rows for origin in stage.spec.inputs for unit in _offers(tx, stage, origin)[1])


def _offers(tx: sa.Connection, stage: BoundStage, origin: Input) -> tuple[int, list[ledger_inputs.Unit]]:
    start = ledger_inputs.processed(tx, f"stage:{stage.name}", origin.id)
    if origin.kind == "source":
        return start, ledger_inputs.unread_items(tx, origin.name, start, _OFFERS_MAX)
    return start, ledger_inputs.unread_epochs(tx, origin.name, origin.port, start, _OFFERS_MAX)


def _allowance(rt: Runtime, origin: Input) -> Allowance:
    if origin.kind == "channel":
        return Allowance()
    items, rows = rt.sources[origin.name].epoch_limits()
    return Allowance(items, rows or limits.EPOCH_ROWS_MAX)
