"""What runs inside the tasks of an epoch's job.

Invariants: a task writes only new files, under the attempt's directory and under names that carry the
number of the Spark task attempt, so no retry, speculative copy or zombie can touch another's files; it
returns one manifest row; Spark accepts one result a partition, so the layer and the output that a
manifest names come from one task attempt.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.channels.segments import SegmentWriter
from holdfast.core import crashpoints
from holdfast.core.crashpoints import Orders
from holdfast.core.errors import CodeError, HoldfastError
from holdfast.core.json import Json
from holdfast.flow.ports import OUT
from holdfast.flow.substreams import SUBSTREAM
from holdfast.spark.direct import DirectFile, read_rows
from holdfast.spark.operators.contract import Changes, DirectOperator, Operator, Shape, Times
from holdfast.spark.operators.ends import check_labels, labels_of, last_buckets
from holdfast.state.digest import digest
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.run import confirm_open_runs
from holdfast.state.schema import conform
from holdfast.state.spine import Spine
from holdfast.storage import checksums

# How many keys an epoch touched, and what came of it.
Came = tuple[int, Changes]

RESULT = "part int, body string"
ROW_HASH = "__hf_row"

# An error of ours crosses from the Python worker to the driver as text: this is how it is found there.
ERROR_MARK = "holdfast-error:"


@dataclass(frozen=True)
class TaskPlan:
    """What every task of an attempt is told."""

    root: str
    directory: str  # of the attempt, relative to the root
    shape: Shape
    layers: tuple[LayerInfo, ...]
    floor: int | None
    times: Times
    labelled: frozenset[str] = frozenset()  # ports whose rows carry the labels of tracked substreams
    orders: Orders = field(default_factory=crashpoints.standing)
    checked: bool = field(default_factory=checksums.are_on)


@dataclass(frozen=True)
class StatefulTask:
    """Looks the epoch's keys up, merges, writes a layer and a segment."""

    plan: TaskPlan
    operator: Operator

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with inside_task(self.plan.orders, self.plan.checked):
            report = self._report(list(batches))
            confirm_open_runs()
            yield result_row(report)

    def _report(self, batches: list[pa.RecordBatch]) -> Json:
        part, name = task_name()
        slots = self.plan.shape.slots(part)
        spine = Spine(Path(self.plan.root), self.operator.state, self.plan.layers, slots, self.plan.floor)
        started = time.perf_counter()
        came = self._changes(batches, spine)
        if came is None and (self.plan.times.ends or self._closes(spine)):
            came = self._received(self.operator.received.empty_table(), spine)
        return self._written(came, spine, name, started) if came else {}

    def _changes(self, batches: list[pa.RecordBatch], spine: Spine) -> Came | None:
        """What came of the epoch's rows, None if there were none."""
        if not batches:
            return None
        return self._received(conform(pa.Table.from_batches(batches), self.operator.received), spine)

    def _received(self, rows: pa.Table, spine: Spine) -> Came:
        return rows.num_rows, self.operator.apply(rows, spine, self.plan.times)

    def _closes(self, spine: Spine) -> bool:
        """Whether the watermark ends something of this task's, told without opening a file."""
        timing, watermark_us = self.operator.timing, self.plan.times.watermark_us
        if timing is None or watermark_us is None:
            return False
        buckets = spine.live_buckets()
        return bool(buckets.size) and int(buckets[0]) <= timing.closing(watermark_us)

    def _labels(self, changes: Changes) -> Json:
        """By port, the labels of the rows that leave; without rows there is no segment to carry any."""
        carried = {port: rows for port, rows in changes.outputs.items() if port in self.plan.labelled}
        return {port: labels_of(rows) for port, rows in carried.items() if rows.num_rows}

    def _held(self, changes: Changes) -> Json:
        """By label of the rows that the epoch put by, the last bucket that has to close."""
        if changes.held is None or OUT not in self.plan.labelled:
            return {}
        return dict(last_buckets(changes.layer, changes.held))

    def _written(self, came: Came, spine: Spine, name: str, started: float) -> Json:
        root, slots = spine.root, spine.slots
        keys, changes = came
        crashpoints.reach("task.before_layer")
        prefix = f"{self.plan.directory}/layer-{name}"
        runs = write_layer(root, prefix, changes.layer, self.operator.state, slots)
        crashpoints.reach("task.after_layer")
        segments = {
            port: _segment(
                SegmentWriter(root, f"{self.plan.directory}/{port}-{name}.parquet", table.schema), table
            )
            for port, table in changes.outputs.items()
        }
        crashpoints.reach("task.after_segment")
        return {
            "runs": [run.to_json() for run in runs],
            "segments": segments,
            "state_digest": digest(changes.layer),
            "digests": {port: digest(table) for port, table in changes.outputs.items()},
            "keys": keys,
            "keys_added": changes.keys_added,
            "counts": dict(changes.counts),
            "newest_us": list(changes.newest_us),
            "holds": list(changes.holds),
            "labels": self._labels(changes),
            "closing": list(changes.closing),
            "held": self._held(changes),
            "operator_ms": (time.perf_counter() - started) * 1000,
        }


@dataclass(frozen=True)
class DirectTask(StatefulTask):
    """Takes its rows from the epoch's files itself; what Spark gives it only says that there is a task."""

    operator: DirectOperator
    files: tuple[DirectFile, ...]

    def _changes(self, batches: list[pa.RecordBatch], spine: Spine) -> Came | None:
        assert self.operator.direct is not None
        sides = read_rows(self.files, self.operator.direct, self.operator.hash_bits, spine.slots)
        if all(rows is None for rows in sides):
            return None
        changes = self.operator.apply_rows(sides, spine, self.plan.times)
        return changes.layer.num_rows, changes


@dataclass(frozen=True)
class ClosingTask:
    """Does what is left to the tasks that no row reached: their windows may be final all the same."""

    task: StatefulTask
    parts: frozenset[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # bounded: one batch, which only says that there is a task
            pass
        part, _ = task_name()
        yield from self.task(iter(())) if part in self.parts else (result_row({}),)


@dataclass(frozen=True)
class StatelessTask:
    """Writes the rows of a stage that keeps no state, batch by batch."""

    plan: TaskPlan
    columns: pa.Schema  # without the row hash, which comes first
    malformed: bool = False  # whether the rows are what a source has set aside, which is counted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with inside_task(self.plan.orders, self.plan.checked):
            yield result_row(self._run(batches))

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Json:
        _, name = task_name()
        root, path = Path(self.plan.root), f"{self.plan.directory}/out-{name}.parquet"
        writer = SegmentWriter(root, path, self.columns)
        sum_of_hashes, rows, files_refused = np.uint64(0), 0, 0
        labels: list[pa.Array] = []
        for batch in batches:
            rows += batch.num_rows
            files_refused += batch.column("row").null_count if self.malformed else 0
            writer.write(pa.RecordBatch.from_arrays(batch.columns[1:], schema=self.columns))
            if OUT in self.plan.labelled:
                labels.append(pc.unique(batch.column(SUBSTREAM)))
            sum_of_hashes += np.sum(np.asarray(batch.column(0)).view(np.uint64), dtype=np.uint64)
        files = writer.close()
        crashpoints.reach("task.after_segment")
        counts = {"malformed": rows - files_refused, "files_refused": files_refused} if self.malformed else {}
        found = {OUT: check_labels(pa.chunked_array(labels).unique())} if labels and files else {}
        body = {"segments": {OUT: files}, "row_hash_sum": int(sum_of_hashes), "counts": counts}
        return {**body, "labels": found}


@contextmanager
def inside_task(orders: Orders, checked: bool = True) -> Iterator[None]:
    """Has the crash points of the driver, and lets an error of ours be recognised on the other side of the JVM."""
    crashpoints.obey(orders)
    checksums.switch(checked)
    with told_across():
        yield
    keep_out_of_collections()


@cache
def keep_out_of_collections() -> None:
    """What a Python worker has imported by the end of its first task stays for as long as it lives.

    Spark has every worker collect garbage after every task, before it takes the next. To look at a few hundred thousand objects
    that never go takes longer than a small epoch does.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def told_across() -> Iterator[None]:
    """Lets an error of ours be recognised on the other side of the JVM."""
    try:
        yield
    except HoldfastError as error:
        facts = {
            "kind": type(error).__name__,
            "message": error.message,
            "heals": error.heals,
            "hint": error.hint,
            **({"trace": error.trace, "line": error.line} if isinstance(error, CodeError) else {}),
        }
        raise RuntimeError(f"{ERROR_MARK}{json.dumps(facts)}:{ERROR_MARK}") from error


def task_name() -> tuple[int, str]:
    """The number of this task, and a name that no other attempt at it has."""
    context = TaskContext.get()
    assert context is not None
    part = context.partitionId()
    return part, f"{part:04d}-{context.taskAttemptId()}"


def result_row(body: Json) -> pa.RecordBatch:
    """One manifest row."""
    part, _ = task_name()
    return pa.RecordBatch.from_arrays(
        [pa.array([part], pa.int32()), pa.array([json.dumps(body)])], ["part", "body"]
    )


def _segment(writer: SegmentWriter, table: pa.Table) -> list[Json]:
    writer.write(table)
    return writer.close()
