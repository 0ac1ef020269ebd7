"""Watermarks through graphs: chains of stateful steps, unions of inputs of different speed, idle inputs, restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows, read_sink, write_files
from event_time import MINUTE_US, START_US, UTC_TIME, at, events, ids_of, plans
from holdfast.flow.endpoints import SourceDescription
from holdfast.ledger.status import status

SCHEMA = "id long, k string, v long, ts timestamp"


def chain(home: Path, source: SourceDescription, late: str) -> hf.Flow:
    flow = hf.Flow("chain")
    unique = flow.source("rows", source).dedup("id", time="ts", within="1 hour").named("unique")
    per_key = (
        unique.group_by("k").window("ts", tumbling="5 minutes", late=late).agg(n=hf.count(), s=hf.sum("v"))
    )
    per_key.named("per_key").to(hf.parquet(str(home / "per_key")))
    overall = (
        per_key.transform(lambda df: df.selectExpr("coalesce(k, '') < 'k2' as low", "n", "s", "window_start"))
        .group_by("low")
        .window("window_start", tumbling="30 minutes")
        .agg(keys=hf.count(), n=hf.sum("n"), s=hf.sum("s"))
    )
    overall.named("overall").to(hf.parquet(str(home / "overall")))
    per_key.group_by("k").agg(windows=hf.count(), top=hf.max("n")).named("totals").to(
        hf.parquet(str(home / "totals"))
    )
    return flow


def expected_chain(spark: SparkSession, table: pa.Table) -> dict[str, DataFrame]:
    rows = spark.createDataFrame(table).where("ts is not null").dropDuplicates(["id"])
    rows.createOrReplaceTempView("chain_rows")
    per_key = spark.sql(
        "select k, w.start as window_start, w.end as window_end, count(1) as n, sum(v) as s from"
        " (select k, v, window(ts, '5 minutes') as w from chain_rows) group by k, w"
    )
    per_key.createOrReplaceTempView("chain_windows")
    overall = spark.sql(
        "select low, w.start as window_start, w.end as window_end, count(1) as keys, sum(n) as n, sum(s) as s from"
        " (select coalesce(k, '') < 'k2' as low, n, s, window(window_start, '30 minutes') as w from chain_windows)"
        " group by low, w"
    )
    return {"per_key": per_key, "overall": overall}


def repeated(seed: int, rows: int, disorder_us: int) -> pa.Table:
    """Events of which some come twice, with all they hold."""
    table = events(seed, rows, disorder_us=disorder_us)
    again = np.sort(np.random.default_rng(seed).choice(rows, rows // 5))
    twice = np.sort(np.concatenate([np.arange(rows), again]))
    return table.take(pa.array(twice))


@given(
    seed=st.integers(0, 10_000),
    per_epoch=st.integers(15, 60),
    tasks=st.integers(1, 3),
    disorder=st.sampled_from([0, 8]),
)
@settings(max_examples=settings().max_examples // 50)
def test_a_chain_of_dedup_window_and_a_second_window_equals_a_batch(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed, per_epoch, tasks, disorder
) -> None:
    home = tmp_path_factory.mktemp("chain")
    table = repeated(seed, 120, disorder * MINUTE_US)
    chain(home, hf.rows(table, per_epoch=per_epoch), "8 minutes").run(
        home / "work", drain=True, spark=spark, tasks=tasks
    )
    for name, expected in expected_chain(spark, table).items():
        assert_same_rows(spark.read.parquet(str(home / name)).drop("epoch"), expected)
    stages = status(home / "work")["stages"]
    assert all(not stages[name]["aside"].get("late") for name in stages), stages


def test_a_chain_restarted_after_every_file_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = repeated(2, 80, 8 * MINUTE_US)
    for number, start in enumerate(range(0, table.num_rows, 24)):
        write_files(tmp_path / "in", [table.slice(start, 24)], number)
        source = hf.files(str(tmp_path / "in"), schema=SCHEMA, max_files_per_epoch=1)
        chain(tmp_path, source, "8 minutes").run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    source = hf.files(str(tmp_path / "in"), schema=SCHEMA)
    chain(tmp_path, source, "8 minutes").run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    for name, expected in expected_chain(spark, table).items():
        assert_same_rows(spark.read.parquet(str(tmp_path / name)).drop("epoch"), expected)


def minutes(*values: int) -> pa.Table:
    rows = len(values)
    times = pa.array(START_US + np.array(values) * MINUTE_US).cast(UTC_TIME)
    return pa.table({"id": np.arange(rows), "k": ["a"] * rows, "v": [1] * rows, "ts": times})


def union(home: Path, fast: pa.Table, slow: pa.Table, **slow_options: str) -> hf.Flow:
    flow = hf.Flow("union")
    left = flow.source("fast", hf.rows(fast, per_epoch=2))
    right = flow.source("slow", hf.rows(slow, per_epoch=1, **slow_options))  # type: ignore[arg-type]
    both = left.union(right.transform(lambda df: df.select("v", "ts", "k", "id")))
    windows = both.group_by("k").window("ts", tumbling="10 minutes").agg(n=hf.count()).named("w")
    windows.to(hf.parquet(str(home / "out"))).late_to(hf.parquet(str(home / "late")))
    return flow


def test_the_watermark_of_a_union_is_that_of_its_slowest_input(spark: SparkSession, tmp_path: Path) -> None:
    """The fast input is an hour ahead at once; the slow one follows, and none of its rows is late."""
    fast, slow = minutes(*range(0, 60, 2)), minutes(*range(0, 60, 5))
    union(tmp_path, fast, slow).run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    counts = read_sink(tmp_path / "out").sort_by("window_start")["n"].to_pylist()
    assert counts == [7] * 6
    assert not (tmp_path / "late").exists() or read_sink(tmp_path / "late").num_rows == 0
    reached = [plan["watermark_us"] for plan in plans(tmp_path / "work", "w")]
    known = [w for w in reached if w is not None]
    assert known == sorted(known)


def test_a_silent_input_holds_the_watermark_until_it_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    fast, slow = minutes(*range(0, 60, 2)), minutes(1)
    union(tmp_path / "held", fast, slow).run(tmp_path / "held" / "work", until_idle=True, spark=spark)
    held = read_sink(tmp_path / "held" / "out") if (tmp_path / "held" / "out").exists() else None
    assert held is None or held.num_rows == 0
    released = union(tmp_path / "freed", fast, slow, idle_after="0 seconds")
    released.run(tmp_path / "freed" / "work", until_idle=True, spark=spark)
    assert read_sink(tmp_path / "freed" / "out").num_rows == 5


def test_late_rows_of_either_input_are_told_apart_from_early_ones_of_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    fast, slow = minutes(0, *range(50, 59), 39, 5), minutes(0, 40, 41)
    union(tmp_path, fast, slow).run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    assert ids_of(tmp_path / "late") == [10, 11]


def test_windows_of_timestamps_without_a_zone(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": ["a", "a"], "ts": at(0, 30).cast(pa.timestamp("us"))})
    flow = hf.Flow("ntz")
    rows = flow.source("rows", hf.rows(table))
    rows.group_by("k").window("ts", tumbling="1 minute").agg(n=hf.count()).to(
        hf.parquet(str(tmp_path / "out"))
    )
    flow.run(tmp_path / "work", drain=True, spark=spark)
    out = read_sink(tmp_path / "out")
    assert out.schema.field("window_start").type == pa.timestamp("us")
    assert out["n"].to_pylist() == [2]


def test_an_epoch_whose_rows_are_all_filtered_away_still_closes(spark: SparkSession, tmp_path: Path) -> None:
    """Spark plans an empty relation away and runs no task; windows that were due must leave all the same."""
    table = minutes(0, 30, 31, 32)
    flow = hf.Flow("filtered")
    rows = flow.source("rows", hf.rows(table, per_epoch=1)).transform(lambda df: df.where("id < 2"))
    rows.group_by("k").window("ts", tumbling="10 minutes").agg(n=hf.count()).named("w").to(
        hf.parquet(str(tmp_path / "out"))
    )
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    assert read_sink(tmp_path / "out")["n"].to_pylist() == [1]
    assert status(tmp_path / "work")["stages"]["w"]["state_rows"] == 1


def test_a_drained_flow_goes_on_with_what_comes_after(spark: SparkSession, tmp_path: Path) -> None:
    def flow() -> hf.Flow:
        made = hf.Flow("drained")
        source = hf.files(str(tmp_path / "in"), schema=SCHEMA)
        windows = made.source("rows", source).group_by("k").window("ts", tumbling="10 minutes")
        windows.agg(n=hf.count()).named("w").to(hf.parquet(str(tmp_path / "out")))
        return made

    write_files(tmp_path / "in", [minutes(0, 1, 12)], 0)
    flow().run(tmp_path / "work", drain=True, spark=spark)
    write_files(tmp_path / "in", [minutes(19, 20, 21, 35)], 1)
    flow().run(tmp_path / "work", drain=True, spark=spark)
    out = read_sink(tmp_path / "out").sort_by("window_start")
    assert out["n"].to_pylist() == [2, 1, 2, 1]
    assert status(tmp_path / "work")["stages"]["w"]["aside"] == {"late": 1}
