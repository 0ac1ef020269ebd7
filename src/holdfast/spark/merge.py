"""The Spark job of one merge step: a bounded number of runs, rewritten by one task.

A merge runs beside the epochs of its stage. One task a step keeps it to one core, and the bound on a
step's runs bounds how long an epoch can find that core taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.core import crashpoints
from holdfast.core.crashpoints import Orders
from holdfast.core.json import Json
from holdfast.spark.epoch import run_tagged
from holdfast.spark.task import RESULT, inside_task, result_row, task_name
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.merge import merge_runs
from holdfast.state.run import confirm_open_runs
from holdfast.state.schema import StateSchema
from holdfast.storage import checksums


@dataclass(frozen=True)
class MergeStep:
    """What a merge step's task is told."""

    root: str
    directory: str
    schema: StateSchema
    layers: tuple[LayerInfo, ...]  # oldest first
    ranges: tuple[tuple[int, int], ...]  # of slots, one for each run to write
    bottom: bool
    floor: int | None
    orders: Orders = field(default_factory=crashpoints.standing)
    checked: bool = field(default_factory=checksums.are_on)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with inside_task(self.orders, self.checked):
            for _ in batches:
                pass
            runs = [run for slots in self.ranges for run in self._rewrite(slots)]
            confirm_open_runs()
            yield result_row({"runs": runs})

    def _rewrite(self, slots: tuple[int, int]) -> list[Json]:
        _, name = task_name()
        merged = merge_runs(
            Path(self.root), self.schema, self.layers, slots, bottom=self.bottom, floor=self.floor
        )
        crashpoints.reach("merge.mid")
        prefix = f"{self.directory}/merge-{name}-{slots[0]:04d}"
        runs = write_layer(Path(self.root), prefix, merged, self.schema, slots)
        return [{**run.to_json()} for run in runs]


def run_merge_step(spark: SparkSession, step: MergeStep, tag: str) -> list[Json]:
    """Run one step and return the runs it wrote."""
    reports = run_tagged(spark, spark.range(0, 1, 1, 1).mapInArrow(step, RESULT), tag)
    return [run for report in reports for run in report["runs"]]
