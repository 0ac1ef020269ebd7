"""How many tasks a session runs at the same time, asked of Spark itself, without a job and on every master.

Spark cuts a range that nobody says more about into as many parts as it counts on running at once: on `local` masters the
cores that the master names, on a cluster the cores of the executors that are registered now, at least two. EXPLAIN tells
it from the plan alone, over Connect too. An epoch's exchanges go over at most so many tasks; Spark's own default, 200,
would be 200 tasks for an epoch of ten rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.spark.session import SHUFFLE_PARTITIONS


def cores(spark: SparkSession) -> int:
    """Tasks that run at the same time; where Spark adds executors by demand, those that it may come to run."""
    task_cores = _number(spark, "spark.task.cpus", 1)
    there = max(1, _registered(spark) // task_cores)
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return there
    # Executors that come by demand come only for tasks that wait: counting those that are there would ask for none.
    executors = _number(spark, "spark.dynamicAllocation.maxExecutors", limits.EXECUTORS_BY_DEMAND)
    executors = min(executors, limits.EXECUTORS_BY_DEMAND)
    return max(there, executors * max(1, _number(spark, "spark.executor.cores", 1) // task_cores))


def exchange_tasks(spark: SparkSession) -> int:
    """Over how many tasks a session's exchanges go: while a flow runs on it, the cores that were counted last."""
    return int(spark.conf.get(SHUFFLE_PARTITIONS) or 1)


def is_fixed(spark: SparkSession) -> bool:
    """Whether the number can never change: the cores of this process, as opposed to those of executors."""
    return re.fullmatch(r"local(\[[^\]]*\])?", spark.conf.get("spark.master", "") or "") is not None


class Cores:
    """The number of a worker's session, looked at again from time to time: executors come and go."""

    def __init__(
        self, spark: SparkSession, tasks: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._clock = clock
        self._is_fixed = tasks is not None or is_fixed(spark)
        self._next = clock() + limits.CORES_LOOK_MS / 1000
        self.count = tasks or cores(spark)
        self._exchange_over()

    def look(self) -> None:
        """Count again if it is time to; not inside a transaction, as it waits for Spark."""
        if self._is_fixed or self._clock() < self._next:
            return
        self._next = self._clock() + limits.CORES_LOOK_MS / 1000
        try:
            found = cores(self._spark)
        except Exception:
            # The number is a matter of speed; a session that answers nothing is told of by the epoch's own job.
            return
        if found != self.count:
            self.count = found
            self._exchange_over()

    def _exchange_over(self) -> None:
        """Exchanges that are not ours to cut, before the operator's, in the flow's code, go over as many tasks."""
        self._spark.conf.set(SHUFFLE_PARTITIONS, str(self.count))


def _registered(spark: SparkSession) -> int:
    told = spark.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
    found = re.search(r"splits=(?:Some\()?(\d+)", told)
    if found is None:
        raise PlanError(
            f"Spark does not say how many tasks it would run at once: {told.strip()}",
            operation="session",
            hint="Say so yourself: tasks=, or --tasks N.",
        )
    return int(found.group(1))


def _number(spark: SparkSession, key: str, default: int) -> int:
    value = spark.conf.get(key, None)
    return int(value) if value and value.isdigit() else default
