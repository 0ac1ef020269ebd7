"""Runs a recorded plan as a Spark job: for an epoch's first attempt, a retry, or the replay of a repair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from holdfast.core.errors import StorageError
from holdfast.core.json import Json
from holdfast.flow.planner import Input
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.files import LayerRow
from holdfast.ledger.inputs import Item
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.sources.contract import Quarantining
from holdfast.sources.files import unglobbed
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome, run_epoch
from holdfast.spark.operators.contract import Shape, Times
from holdfast.spark.task import TaskPlan
from holdfast.state.layer import LayerInfo
from holdfast.state.run import LostFileError, RunInfo
from holdfast.storage.inspection import fault
from holdfast.storage.workdir import attempt_directory

Scratch = Callable[[Input, int], list[Json]]


def execute(
    rt: Runtime,
    stage: BoundStage,
    plan: EpochPlan,
    epoch: int,
    attempt: str,
    spine: Sequence[LayerInfo],
    scratch: Scratch | None = None,
) -> Outcome:
    """One attempt at an epoch on a given base state; nothing it writes is visible yet.

    `scratch` gives the segments of epochs that a channel no longer keeps; without it, they are an error.
    """
    frames = _frames(rt, stage, plan, scratch) if plan.rows else {}
    shape = Shape(plan.boundaries, plan.aggregate_first)
    times = Times(plan.watermark_us, plan.now_ms * 1_000)
    directory = attempt_directory(stage.name, attempt)
    task_plan = TaskPlan(str(rt.root), directory, shape, tuple(spine), plan.floor, times)
    with rt.tagged(stage.name, f"epoch-{epoch}") as tag:
        return run_epoch(rt.spark, stage, frames, task_plan, tag)


def layer_info(row: LayerRow) -> LayerInfo:
    """A layer of the ledger as the state store knows it."""
    return layer_of(row.first, row.last, row.runs)


def layer_of(first: int, last: int, runs: Sequence[Json]) -> LayerInfo:
    """A layer from the runs of a manifest."""
    return LayerInfo(first, last, tuple(RunInfo.from_json(run) for run in runs))  # type: ignore[arg-type]


def _frames(
    rt: Runtime, stage: BoundStage, plan: EpochPlan, scratch: Scratch | None
) -> dict[Input, DataFrame]:
    frames = {}
    for origin in stage.spec.inputs:
        start, stop = plan.ranges[origin.id]
        if origin.kind == "source":
            with rt.ledger.read() as tx:
                items = ledger_inputs.items(tx, origin.name, start, stop)
            frames[origin] = _source(rt, origin, items)
        else:
            frames[origin] = _channel(rt, origin, _segment_files(rt, origin, start, stop, scratch))
    return frames


def _source(rt: Runtime, origin: Input, items: Sequence[Item]) -> DataFrame:
    source = rt.sources[origin.name]
    if not origin.port:
        return source.read(rt.spark, items)
    assert isinstance(source, Quarantining)
    return source.quarantined(rt.spark, items)


def _segment_files(rt: Runtime, origin: Input, start: int, stop: int, scratch: Scratch | None) -> list[Json]:
    """The files of a channel's epochs; none that held rows is passed over."""
    with rt.ledger.read() as tx:
        held = ledger_inputs.rows_written(tx, origin.name, origin.port, start, stop)
        kept = {s.epoch: s.files for s in ledger_inputs.segments(tx, origin.name, origin.port, start, stop)}
    found: list[Json] = []
    for epoch in (epoch for epoch, rows in held.items() if rows):
        if epoch in kept:
            found += kept[epoch]
        elif scratch:
            found += scratch(origin, epoch)
        else:
            raise StorageError(f"epoch {epoch} of {origin.id} is no longer kept", operation="read channel")
    return found


def _channel(rt: Runtime, origin: Input, files: list[Json]) -> DataFrame:
    schema = rt.stages[origin.name].output
    for file in files:
        wrong = fault(rt.root, file, deep=False)
        if wrong:
            raise LostFileError(file["path"], wrong)
    if not files:
        return rt.spark.createDataFrame([], schema)
    return rt.spark.read.schema(schema).parquet(*(unglobbed(str(rt.root / file["path"])) for file in files))
