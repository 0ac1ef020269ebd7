"""What stands between the promotion of a standby and its first epoch, counted."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.flow.placement import MAIN
from holdfast.flow.planner import plan
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
from holdfast.runtime import repair as repairing
from holdfast.runtime.binding import register
from holdfast.runtime.context import Runtime
from holdfast.runtime.worker import RunOptions, bind_flow
from holdfast.spark.warming import warm_python_workers

ROWS = [{"k": i % 3, "v": i} for i in range(30)]


def test_every_core_has_a_python_worker_before_anybody_is_in_a_hurry(spark: SparkSession) -> None:
    assert warm_python_workers(spark, 2, "warming") == 2


def flow() -> hf.Flow:
    made = hf.Flow("totals")
    rows = made.source("in", hf.rows(ROWS))
    first = rows.group_by("k").agg(n=hf.count()).named("per-key")
    first.as_rows().group_by("n").agg(keys=hf.count()).named("per-count").to(hf.discard())
    return made


def led(work: Path, spark: SparkSession, ledger: Ledger) -> Runtime:
    rt = bind_flow(plan(flow()).alone(), work, ledger, spark, RunOptions(spark=spark), "w", MAIN)
    rt.generation = holder.take(ledger, "totals", by_force=True)
    return rt


def test_a_flow_of_two_stages_is_registered_in_one_write(work: Path, spark: SparkSession) -> None:
    flow().run(work, until_idle=True, spark=spark)
    ledger = Ledger(work)
    rt, writes = led(work, spark, ledger), []
    ledger.on_commit(lambda: writes.append(1))
    register(rt)
    assert len(writes) == 1
    ledger.close()


def test_where_nothing_is_lost_a_successor_sweeps_nothing(work: Path, spark: SparkSession) -> None:
    flow().run(work, until_idle=True, spark=spark)
    ledger = Ledger(work)
    rt, writes = led(work, spark, ledger), []
    register(rt)
    ledger.on_commit(lambda: writes.append(1))
    assert repairing.repair(rt) == 0
    assert writes == []
    ledger.close()
