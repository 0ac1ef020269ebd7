"""Over how many tasks an epoch is spread: by the rows that it reads or closes, and the cores that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import write_files
from holdfast.core import limits
from holdfast.ledger.ledger import reading

LARGE, SMALL = limits.TASK_ROWS + 10_000, 10


def rows(number: int, count: int, keys: int) -> pa.Table:
    times = pa.array([1_774_738_800_000_000 + number * 60_000_000] * count).cast(pa.timestamp("us", "UTC"))
    return pa.table({"k": [n % keys for n in range(count)], "ts": times})


def counting(home: Path, window: bool = False) -> hf.Flow:
    flow = hf.Flow("counts")
    source = hf.files(str(home / "in"), schema="k long, ts timestamp", max_files_per_epoch=1)
    keyed = flow.source("rows", source).transform(lambda df: df.where("k >= 0")).group_by("k")
    counted = keyed.window("ts", tumbling="1 minute", late="0 seconds") if window else keyed
    counted.agg(n=hf.count()).named("counts").to(hf.parquet(str(home / "out")))
    return flow


def planned(home: Path) -> list[tuple[int, int]]:
    """By epoch, the rows that the plan reads, and its tasks."""
    with reading(home / "work") as tx:
        bodies = [
            json.loads(body) for (body,) in tx.execute(sa.text("select body from plans order by epoch"))
        ]
    return [(body["rows"], len(body["boundaries"]) - 1) for body in bodies]


def tasks_of_jobs(spark: SparkSession) -> dict[int, int]:
    """By stage of a Spark job, how many tasks it had."""
    tracker = spark.sparkContext.statusTracker()
    stages = [
        stage
        for job in tracker.getJobIdsForGroup(None)
        if (found := tracker.getJobInfo(job))
        for stage in found.stageIds
    ]
    return {stage: info.numTasks for stage in stages if (info := tracker.getStageInfo(stage))}


def test_tasks_follow_the_rows_of_an_epoch_and_the_cores(spark: SparkSession, tmp_path: Path) -> None:
    """The third epoch groups before the exchange, as the second had few keys: that exchange has no more tasks either."""
    write_files(tmp_path / "in", [rows(0, SMALL, 5), rows(1, LARGE, 5), rows(2, LARGE, 5)])
    before = tasks_of_jobs(spark).keys()
    counting(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    assert planned(tmp_path) == [(SMALL, 1), (LARGE, 2), (LARGE, 2)]
    ran = {stage: tasks for stage, tasks in tasks_of_jobs(spark).items() if stage not in before}
    assert len(ran) >= 7
    assert max(ran.values()) == 2, ran
    write_files(tmp_path / "in", [rows(3, SMALL, 5)], first=3)
    counting(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    assert planned(tmp_path)[-1] == (SMALL, 3)


def test_an_epoch_that_only_closes_is_spread_by_what_it_closes(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [rows(0, LARGE, LARGE), rows(1, SMALL, SMALL)])
    counting(tmp_path, window=True).run(tmp_path / "work", drain=True, spark=spark)
    large, small, *closing = planned(tmp_path)
    assert (large, small) == ((LARGE, 2), (SMALL, 1))
    assert closing == [(0, 2), (0, 1)], "the window of many keys closes first, then that of few"
