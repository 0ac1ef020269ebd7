"""A Python worker for every core, with everything imported that tasks need, before anybody is in a hurry.

Spark starts a Python worker when a task finds none that is free, and that takes seconds. The rehearsed epochs of a
standby may be one task each; the first merge after its promotion would then have the only worker there is, and the
first epoch would wait for another one to start.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.core import limits
from holdfast.spark.epoch import run_tagged
from holdfast.spark.task import RESULT, result_row

# What the tasks of epochs and merges are pickled with.
_NEEDED = ("holdfast.spark.epoch", "holdfast.spark.merge")


@dataclass(frozen=True)
class _Presence:
    """Keeps its Python worker for long enough that no other task gets the same one."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # bounded: one batch, which only says that there is a task
            pass
        for name in _NEEDED:
            importlib.import_module(name)
        time.sleep(limits.PRESENCE_MS / 1000)
        yield result_row({"worker": f"{platform.node()} {os.getpid()}"})


def warm_python_workers(spark: SparkSession, cores: int, tag: str) -> int:
    """Have as many Python workers as tasks can run at the same time, under a tag by which that can be interrupted.

    Returns how many there were.
    """
    job = spark.range(0, cores, 1, cores).mapInArrow(_Presence(), RESULT)
    return len({report["worker"] for report in run_tagged(spark, job, tag)})
