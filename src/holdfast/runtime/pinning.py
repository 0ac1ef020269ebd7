"""Keeps the sweeper off what a job reads, for as long as it reads it.

The worker that leads a group also sweeps, and only has to remember; any other says so in the ledger, in the transaction
in which it finds the files. A task that misses a file takes its Python worker with it, and a new one takes a second to
be of use: a member that follows would fall behind by several epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from holdfast.ledger import files
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.files import LayerRow
from holdfast.ledger.pins import pin, unpin
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.spark.bind import BoundStage
from holdfast.state.run import LostFileError


@contextmanager
def base_state(
    rt: Runtime, stage: BoundStage, row: StageRow, plan: EpochPlan
) -> Iterator[Sequence[LayerRow]]:
    """The spine at a stage's head; it stays, and so does what the plan reads."""
    if rt.leads:
        with rt.pins.hold(lambda: _found(rt, stage, row)) as held:
            yield held
        return
    with rt.ledger.unfenced_write() as tx:
        spine = _spine(tx, stage, row)
        pin_all(tx, rt, stage, plan, spine)
    try:
        yield spine
    finally:
        let_go(rt, stage)


def pin_all(
    tx: sa.Connection, rt: Runtime, stage: BoundStage, plan: EpochPlan, spine: Sequence[LayerRow]
) -> None:
    """Pin layers, and the segments that a plan reads, as far as they are still kept."""
    channels = [origin for origin in stage.spec.inputs if origin.kind == "channel"]
    segments = [
        segment.id
        for origin in channels
        for segment in ledger_inputs.segments(tx, origin.name, origin.port, *plan.ranges[origin.id])
    ]
    pin(tx, _reader(rt, stage), [layer.id for layer in spine], segments)


def let_go(rt: Runtime, stage: BoundStage) -> None:
    """Drop what this worker has pinned for a stage."""
    unpin(rt.ledger, _reader(rt, stage))


def _reader(rt: Runtime, stage: BoundStage) -> str:
    return f"{rt.worker}/{stage.name}"


def _found(rt: Runtime, stage: BoundStage, row: StageRow) -> list[LayerRow]:
    with rt.ledger.read() as tx:
        return _spine(tx, stage, row)


def _spine(tx: sa.Connection, stage: BoundStage, row: StageRow) -> list[LayerRow]:
    spine, reached = files.cover(files.live_layers(tx, row), row.head)
    if stage.operator is not None and reached != row.head + 1:
        raise LostFileError(f"layer of {stage.name} epoch {reached}", "it was marked lost")
    return spine
