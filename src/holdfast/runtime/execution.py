"""Runs a recorded plan as a Spark job: for an epoch's first attempt, a retry, or the replay of a repair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame

from holdfast.core.errors import FlowError, StorageError
from holdfast.core.json import Json
from holdfast.flow.prefixes import Input
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.files import LayerRow
from holdfast.ledger.inputs import Item
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.tables import fault_of_copy
from holdfast.sources.contract import InFiles, Quarantining, check_still_empty
from holdfast.sources.files import unglobbed
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.bind import BoundStage
from holdfast.spark.direct import DirectFile
from holdfast.spark.epoch import Outcome, Reads, run_epoch
from holdfast.spark.operators.contract import Shape, Times
from holdfast.spark.task import TaskPlan
from holdfast.state.layer import LayerInfo
from holdfast.state.run import LostFileError, RunInfo
from holdfast.storage.checksums import fault_at_first

Scratch = Callable[[Input, int], list[Json]]

# The files of an input's epochs.
Segments = Callable[[Input], list[Json]]


def execute(
    rt: Runtime,
    stage: BoundStage,
    plan: EpochPlan,
    epoch: int,
    directory: str,
    spine: Sequence[LayerInfo],
    scratch: Scratch | None = None,
) -> Outcome:
    """One attempt at an epoch on a given base state; nothing that it writes to the directory is visible yet.

    `scratch` gives the segments of epochs that a channel no longer keeps; without it, they are an error.
    """
    reads: Reads = {}
    read: list[Json] = []
    if plan.rows:
        segments = partial(_segment_files, rt, plan, scratch, read)
        reads = (_files if plan.direct and stage.direct else _frames)(rt, stage, plan, segments)
    shape = Shape(plan.boundaries, plan.aggregate_first)
    times = Times(plan.watermark_us, plan.now_ms * 1_000, epoch, plan.ends)
    task_plan = TaskPlan(
        str(rt.root), directory, shape, tuple(spine), plan.floor, times, rt.labels.ports(stage.name)
    )
    with rt.tagged(stage.name, f"epoch-{epoch}") as tag:
        outcome = run_epoch(rt.spark, stage, reads, task_plan, tag)
    _confirm(rt, read)
    return outcome


def not_deterministic(happened: str, operation: str, stage: str, epoch: int) -> FlowError:
    """What one plan gives must always be the same; nothing can be recovered otherwise."""
    return FlowError(
        f"{happened}, so the stage is not deterministic.",
        operation=operation,
        stage=stage,
        epoch=epoch,
        hint="Look for random values, the current time, or a filter on a double (use a decimal there).",
    )


def layer_info(row: LayerRow) -> LayerInfo:
    """A layer of the ledger as the state store knows it."""
    return layer_of(row.first, row.last, row.runs)


def layer_of(first: int, last: int, runs: Sequence[Json]) -> LayerInfo:
    """A layer from the runs of a manifest."""
    return LayerInfo(first, last, tuple(RunInfo.from_json(run) for run in runs))  # type: ignore[arg-type]


def _frames(rt: Runtime, stage: BoundStage, plan: EpochPlan, segments: Segments) -> dict[Input, DataFrame]:
    frames = {}
    for origin in stage.spec.inputs:
        if origin.kind == "source":
            frames[origin] = _source(rt, origin, _items(rt, origin, plan))
        else:
            frames[origin] = _channel(rt, origin, segments(origin))
    for name in stage.spec.tables:
        file = _copy(rt, stage, name, plan.tables.get(name))
        rows = rt.spark.read.schema(rt.tables[name].schema())
        frames[Input("table", name)] = rows.parquet(unglobbed(str(rt.root / file["path"])))
    return frames


def _copy(rt: Runtime, stage: BoundStage, table: str, file: Json | None) -> Json:
    """The version of a table that a plan names, whole."""
    if file is None:
        raise StorageError(
            f"the plan names no version of table {table!r}: it was made before the stage was enriched with it",
            operation="enrich",
        )
    wrong = fault_of_copy(rt, stage.name, file)
    if wrong:
        raise StorageError(
            f"the copy of table {table!r}, version {file['version']}, {wrong}: {file['path']}",
            operation="enrich",
            hint="An epoch was planned with it, and nothing else gives its rows again. Bring the file back from a backup of"
            " the work directory. If that epoch was not committed, run again: it is planned anew, with the table as it is.",
        )
    return file


def _source(rt: Runtime, origin: Input, items: Sequence[Item]) -> DataFrame:
    source = rt.sources[origin.name]
    if not origin.port:
        return source.read(rt.spark, items)
    assert isinstance(source, Quarantining)
    return source.quarantined(rt.spark, items)


def _files(rt: Runtime, stage: BoundStage, plan: EpochPlan, segments: Segments) -> list[DirectFile]:
    found = []
    for number, feed in enumerate(stage.spec.feeds):
        origin, side = feed.input, feed.side
        if origin.kind == "source":
            source = rt.sources[origin.name]
            assert isinstance(source, InFiles)
            paths = source.checked(_items(rt, origin, plan))
            declared = arrow_schema(origin.name, source.schema())
            found += [DirectFile(str(path), number, side, None, declared) for path in paths]
        else:
            names = [file["path"] for file in segments(origin)]
            found += [DirectFile(str(rt.root / name), number, side, name) for name in names]
    return found


def _items(rt: Runtime, origin: Input, plan: EpochPlan) -> list[Item]:
    """The items that an epoch reads: those without rows only take up places in its range."""
    with rt.ledger.read() as tx:
        items = ledger_inputs.items(tx, origin.name, *plan.ranges[origin.id])
    check_still_empty(rt.sources[origin.name], [item for item in items if item.rows == 0])
    return [item for item in items if item.rows != 0]


def _segment_files(
    rt: Runtime, plan: EpochPlan, scratch: Scratch | None, read: list[Json], origin: Input
) -> list[Json]:
    """The files of a channel's epochs, all there and whole, added to `read`; none that held rows is passed over."""
    start, stop = plan.ranges[origin.id]
    with rt.ledger.read() as tx:
        held = ledger_inputs.rows_written(tx, origin.name, origin.port, start, stop)
        segments = ledger_inputs.segments(tx, origin.name, origin.port, start, stop)
    # In a cycle no stage is repaired before all that it reads: a replay makes what is lost there too.
    kept = {s.epoch: s.files for s in segments if scratch is None or s.status == "live"}
    found: list[Json] = []
    for epoch in (epoch for epoch, rows in held.items() if rows):
        if epoch in kept:
            found += kept[epoch]
        elif scratch:
            found += scratch(origin, epoch)
        else:
            raise StorageError(f"epoch {epoch} of {origin.id} is no longer kept", operation="read channel")
    for file in found:
        wrong = fault_at_first(rt.root, file)
        if wrong:
            raise LostFileError(file["path"], wrong)
    read += found
    return found


def _confirm(rt: Runtime, read: Sequence[Json]) -> None:
    """Nobody has written to files while they were read. One that is gone was let go of by then."""
    for file in read:
        wrong = fault_at_first(rt.root, file)
        if wrong and (rt.root / file["path"]).exists():
            raise LostFileError(file["path"], wrong)


def _channel(rt: Runtime, origin: Input, files: list[Json]) -> DataFrame:
    schema = rt.stages[origin.name].output
    if not files:
        return rt.spark.createDataFrame([], schema)
    return rt.spark.read.schema(schema).parquet(*(unglobbed(str(rt.root / file["path"])) for file in files))
