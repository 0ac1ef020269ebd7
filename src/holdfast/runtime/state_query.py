"""A SQL predicate over a stage's state, by Spark on this machine: the language is the one flows are written in.

The tasks read the layers themselves, a range of slots each, and write what they find; only what the predicate lets
through is ever in one place, and that is a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from holdfast.channels.segments import SegmentWriter
from holdfast.core.errors import FlowError
from holdfast.runtime.snapshot import Snapshot
from holdfast.spark.epoch import run_tagged
from holdfast.spark.keys import quoted
from holdfast.spark.session import epoch_settings, make_session
from holdfast.spark.task import RESULT, result_row, task_name


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """A Spark session of our own, for as long as it is used."""
    spark = make_session("state", master, {})
    try:
        with epoch_settings(spark):
            yield spark
    finally:
        spark.stop()


def where(
    spark: SparkSession, snapshot: Snapshot, predicate: str, columns: Sequence[str], limit: int | None
) -> Iterator[pa.Table]:
    """The columns of the rows that a predicate holds for, at most `limit` of them, a bounded table at a time."""
    view = snapshot.view
    ddl = ", ".join(f"{quoted(column.name)} {column.type}" for column in view.columns)
    ranges = tuple(snapshot.ranges)
    parts = spark.range(0, max(1, len(ranges)), 1, max(1, len(ranges)))
    state = parts.mapInArrow(_Read(snapshot, ranges), ddl)
    found = _filtered(snapshot, state, predicate).select(*(quoted(name) for name in columns))
    if limit is not None:
        found = found.limit(limit)
    with TemporaryDirectory(prefix="holdfast-state-") as scratch:
        writing = found.mapInArrow(_Write(scratch, view.only(columns).schema), RESULT)
        for report in run_tagged(spark, writing, f"holdfast-state-{snapshot.stage}"):
            for file in report["files"]:
                with pq.ParquetFile(Path(scratch) / file["path"]) as parquet:
                    for batch in parquet.iter_batches():
                        yield pa.Table.from_batches([batch])


def _filtered(snapshot: Snapshot, state: DataFrame, predicate: str) -> DataFrame:
    try:
        return state.where(predicate)
    except (AnalysisException, ParseException) as error:
        raise FlowError(
            f"--where {predicate!r} cannot be used: {error.getMessage() or error}",
            operation="read state",
            stage=snapshot.stage,
            hint=f"The columns are {', '.join(snapshot.view.schema.names)}.",
        ) from error


@dataclass(frozen=True)
class _Read:
    """Reads ranges of slots, by their number."""

    snapshot: Snapshot
    ranges: tuple[tuple[int, int], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():  # bounded: one number a range of slots
                if number < len(self.ranges):
                    yield from self.snapshot.read(self.ranges[number]).to_batches()


@dataclass(frozen=True)
class _Write:
    """Writes what came through, and says where."""

    scratch: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _, name = task_name()
        writer = SegmentWriter(Path(self.scratch), f"{name}.parquet", self.schema)
        for batch in batches:
            writer.write(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
        yield result_row({"files": writer.close()})
