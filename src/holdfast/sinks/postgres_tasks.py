"""Tasks that copy the segments of a large epoch into staging, side by side.

A password reaches them inside the task, with the rest of what they are told; never as a setting of Spark's. An attempt
at a task writes a staging table of its own, and only that of the attempt that Spark accepted is read: what a lost or a
repeated attempt has written is dropped with the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import adbc_driver_manager
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.core import crashpoints, limits
from holdfast.core.crashpoints import Orders
from holdfast.core.errors import SinkError
from holdfast.sinks import postgres_errors, reading
from holdfast.sinks.postgres_copy import Cast, Room, copy_to_staging
from holdfast.sinks.postgres_engine import connect
from holdfast.spark.cores import exchange_tasks
from holdfast.spark.epoch import SparkJobError, run_tagged
from holdfast.spark.task import RESULT, inside_task, result_row, task_name

# Numbered segments, by task.
Shares = tuple[tuple[tuple[int, Path], ...], ...]


@dataclass(frozen=True)
class StagingTask:
    """Copies its share of the segments into a staging table."""

    room: Room
    cast: Cast
    shares: Shares
    orders: Orders = field(default_factory=crashpoints.standing)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with inside_task(self.orders):
            for _ in batches:
                pass
            yield result_row({"staged": self._staged()})

    def _staged(self) -> str:
        part, attempt = task_name()
        name = self.room.staging(attempt)
        try:
            with connect(self.room.info) as session:
                copy_to_staging(session, name, self.shares[part], self.cast)
                session.commit()
        except (adbc_driver_manager.Error, pa.ArrowException) as error:
            # What the driver said is told in our words: this goes through Spark's logs.
            raise postgres_errors.explained(error, self.room.where, self.room.secret, "stage", None) from None
        return name


def shared_out(segments: Sequence[Path], spark: SparkSession | None) -> Shares:
    """The segments of a large epoch, a share for each task; nothing if tasks would not pay."""
    if spark is None or reading.rows_in(segments) < limits.SINK_TASKS_ROWS_MIN:
        return ()
    return dealt(segments, exchange_tasks(spark))


def dealt(segments: Sequence[Path], hands: int) -> Shares:
    """Numbered segments dealt out; nothing if there is nobody to share with."""
    tasks = min(len(segments), hands)
    numbered = tuple(enumerate(segments))
    return tuple(numbered[part::tasks] for part in range(tasks)) if tasks > 1 else ()


def stage_by_tasks(spark: SparkSession, task: StagingTask) -> list[str]:
    """The names of the staging tables that hold all segments."""
    tasks = len(task.shares)
    job = spark.range(0, tasks, 1, tasks).mapInArrow(task, RESULT)
    try:
        reports = run_tagged(spark, job, f"holdfast-stage-{task.room.claim}")
    except SparkJobError as error:
        raise SinkError(error.message, operation="stage", heals=True, hint=error.hint) from error
    return [str(report["staged"]) for report in reports]
