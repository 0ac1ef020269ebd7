"""Reads files that Spark's own reader would refuse: tasks read them with PyArrow, and hand on the declared types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.spark.casting import as_declared, unreadable
from holdfast.spark.task import told_across
from holdfast.storage.atomic import refuse_exhaustion


def converted_files(
    spark: SparkSession, paths: Sequence[str], schema: t.StructType, declared: pa.Schema
) -> DataFrame:
    """The rows of files in the declared types."""
    tasks = min(len(paths), limits.CONVERTING_TASKS_MAX)
    return spark.range(0, len(paths), 1, tasks).mapInArrow(_Reading(tuple(paths), declared), schema)


@dataclass(frozen=True)
class _Reading:
    """What a task does for the numbers of the files that it is given."""

    paths: tuple[str, ...]
    declared: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_numpy():  # bounded: files of an epoch
                with told_across():
                    yield from self._rows(self.paths[number])

    def _rows(self, path: str) -> Iterator[pa.RecordBatch]:
        names = self.declared.names
        try:
            with pq.ParquetFile(Path(path), memory_map=True) as opened:
                for number in range(opened.num_row_groups):
                    rows = opened.read_row_group(number, names, use_threads=False).select(names)
                    yield from as_declared(rows, self.declared).to_batches(
                        max_chunksize=limits.CONVERTED_ROWS_MAX
                    )
        except (OSError, pa.ArrowException) as error:
            refuse_exhaustion(error, "read", path)
            raise unreadable(path, error) from error
