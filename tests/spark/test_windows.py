"""Windows equal a batch computation, whatever the epochs, the tasks and the order; late rows are accounted for."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import (
    WAYS,
    assert_same_rows,
    assert_way,
    batch,
    plans,
    read_sink,
    source,
    write_files,
)
from event_time import MINUTE_US, START_US, at, events, ids_of, micros, watermark_of_rows
from holdfast.core.errors import PlanError
from holdfast.ledger.status import status

AGGREGATES = {
    "n": hf.count(),
    "s": hf.sum("v"),
    "hi": hf.max("v"),
    "mean": hf.avg("v"),
    "dev": hf.stddev("v"),
    "head": hf.first("v", by="id"),
    "tail": hf.last("v", by="id"),
    "different": hf.count_distinct("v"),
    "listed": hf.collect_list("v", by="id"),
    "values": hf.collect_set("v"),
    "newest": hf.top_k("v", 3, by="id"),
    "ids": hf.approx_distinct("id"),
}
EXACT = {name: a.sql() for name, a in AGGREGATES.items() if name != "ids"}
# What tasks can compute without Spark SQL.
LIFTED = [name for name in AGGREGATES if name not in ("head", "tail", "ids")]
KINDS = {
    "tumbling": {"tumbling": "10 minutes"},
    "sliding": {"sliding": ("15 minutes", "5 minutes")},
    "ragged": {"sliding": ("7 minutes", "3 minutes")},
    "session": {"session": "2 minutes"},
}
SIZES_US = {"tumbling": (10, 10), "sliding": (15, 5), "ragged": (7, 3)}


def run(
    spark: SparkSession,
    home: Path,
    table: pa.Table,
    *,
    per_epoch: int,
    late: str = "10 minutes",
    tasks: int = 3,
    bits: int = 64,
    drain: bool = True,
    way: str = "spark",
    **window: object,
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    flow = hf.Flow("windows")
    rows = flow.source("rows", source(home, table, per_epoch, way))
    grouped = rows.group_by("k").window("ts", late=late, **window)  # type: ignore[arg-type]
    aggregates = {name: AGGREGATES[name] for name in (LIFTED if way == "direct" else AGGREGATES)}
    stream = grouped.agg(**aggregates).named("w").to(hf.parquet(str(home / "out")))
    stream.late_to(hf.parquet(str(home / "late")))
    flow.run(home / "work", until_idle=True, drain=drain, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "w", way)


def exact(way: str) -> dict[str, str]:
    """The aggregates that a batch computes exactly, as SQL."""
    return {name: sql for name, sql in EXACT.items() if way == "spark" or name in LIFTED}


def found(spark: SparkSession, home: Path) -> DataFrame:
    """What left, each window once, without the columns that have no exact counterpart."""
    return spark.read.parquet(str(home / "out")).drop("epoch", "ids")


def expected_windows(
    spark: SparkSession, table: pa.Table, watermark: np.ndarray, kind: str, aggregates: dict[str, str]
) -> DataFrame:
    """A batch over the windows of each row that were open when it came."""
    size, slide = (minutes * MINUTE_US for minutes in SIZES_US[kind])
    known = table.append_column("time", pa.array(micros(table["ts"]))).append_column("w", pa.array(watermark))
    rows = spark.createDataFrame(known).where("ts is not null")
    last = f"time - pmod(time, {slide}L) + {size}L"
    ends = f"transform(sequence(0, {-(-size // slide) - 1}), i -> {last} - i * {slide}L)"
    windows = rows.withColumn("e", f.explode(f.expr(ends))).where("e > time and e > w")
    timed = windows.selectExpr(
        "id", "k", "v", f"timestamp_micros(e - {size}L) as window_start", "timestamp_micros(e) as window_end"
    )
    return batch(spark, timed, ["k", "window_start", "window_end"], aggregates)


def late_ids(home: Path) -> list[int]:
    return ids_of(home / "late")


@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["tumbling", "sliding", "ragged"]),
    per_epoch=st.integers(7, 40),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    disorder=st.sampled_from([0, 10, 60]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 14)
def test_any_epochs_tasks_and_order_equal_a_batch_of_the_rows_that_were_not_late(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    seed,
    kind,
    per_epoch,
    tasks,
    bits,
    disorder,
    way,
) -> None:
    home = tmp_path_factory.getbasetemp() / "windows"
    table = events(seed, 90, disorder_us=disorder * MINUTE_US, nulls=0.1)
    run(spark, home, table, per_epoch=per_epoch, tasks=tasks, bits=bits, way=way, **KINDS[kind])
    watermark = watermark_of_rows(home / "work", "w", table.num_rows, per_epoch)
    assert_same_rows(found(spark, home), expected_windows(spark, table, watermark, kind, exact(way)))
    size, slide = (minutes * MINUTE_US for minutes in SIZES_US[kind])
    time = micros(table["ts"])
    missing = np.asarray(table["ts"].is_null())
    late = ~missing & (time // slide * slide + size <= watermark)
    assert late_ids(home) == np.flatnonzero(late | missing).tolist()
    if disorder <= 10:
        assert not late.any()
    aside = status(home / "work")["stages"]["w"]["aside"]
    assert (aside.get("late", 0), aside.get("no_time", 0)) == (late.sum(), missing.sum())
    assert status(home / "work")["stages"]["w"]["state_rows"] == 0


@given(
    seed=st.integers(0, 10_000),
    per_epoch=st.integers(7, 40),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    gap=st.sampled_from([1, 4, 15]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 18)
def test_sessions_equal_sparks_own_whatever_the_epochs_and_tasks(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed, per_epoch, tasks, bits, gap, way
) -> None:
    home = tmp_path_factory.getbasetemp() / "sessions"
    table = events(seed, 120, keys=3, disorder_us=10 * MINUTE_US, nulls=0.05)
    run(spark, home, table, per_epoch=per_epoch, tasks=tasks, bits=bits, way=way, session=f"{gap} minutes")
    sql = exact(way)
    rows = spark.createDataFrame(table).where("ts is not null")
    window = f.session_window("ts", f"{gap} minutes").alias("window")
    grouped = rows.groupBy("k", window).agg(*(f.expr(text).alias(name) for name, text in sql.items()))
    expected = grouped.selectExpr("k", "window.start as window_start", "window.end as window_end", *sql)
    assert_same_rows(found(spark, home), expected)
    assert late_ids(home) == np.flatnonzero(np.asarray(table["ts"].is_null())).tolist()
    assert status(home / "work")["stages"]["w"]["state_rows"] == 0


def simple(times: pa.Array, keys: list[str | None] | None = None) -> pa.Table:
    rows = len(times)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "k": pa.array(keys or ["a"] * rows, pa.string()),
            "v": pa.array([1] * rows, pa.int64()),
            "ts": times,
        }
    )


def windows_of(home: Path) -> list[tuple[str, float, float, int]]:
    """Key, start and end in seconds after the start of the data, and the count; in order."""
    rows = read_sink(home / "out").to_pylist()
    zero = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START_US)
    spans = [
        (r["k"], (r["window_start"] - zero).total_seconds(), (r["window_end"] - zero).total_seconds(), r["n"])
        for r in rows
    ]
    return sorted(spans, key=lambda span: (str(span[0]), *span[1:]))


def test_a_row_that_bridges_two_sessions_merges_them_across_epochs(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = simple(at(0, 200, 100, 290, 1000))
    run(spark, tmp_path, table, per_epoch=1, session="2 minutes")
    assert windows_of(tmp_path) == [("a", 0, 410, 4), ("a", 1000, 1120, 1)]


def test_a_row_at_the_very_end_of_a_session_belongs_to_it_even_when_the_watermark_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other key moves the watermark to the session's end; Spark's own sessions are the judge."""
    table = simple(at(0, 120, 120, 240, 360.000001, 1000), ["a", "b", "a", "a", "a", "b"])
    run(spark, tmp_path, table, per_epoch=1, late="0 seconds", session="2 minutes")
    sessions = (
        spark.createDataFrame(table).groupBy("k", f.session_window("ts", "2 minutes").alias("w")).count()
    )
    assert len(windows_of(tmp_path)) == sessions.count() == 4
    assert late_ids(tmp_path) == []


def test_the_last_watermark_closes_what_it_reaches_and_leaves_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = simple(at(30, 90, 150, 200))
    run(spark, tmp_path, table, per_epoch=4, late="20 seconds", drain=False, tumbling="1 minute")
    assert windows_of(tmp_path) == [("a", 0, 60, 1), ("a", 60, 120, 1), ("a", 120, 180, 1)]
    epochs = plans(tmp_path / "work", "w")
    assert [plan["rows"] for plan in epochs] == [4, 0]
    assert status(tmp_path / "work")["stages"]["w"]["state_rows"] == 1


def test_a_key_whose_only_row_is_late_has_no_window(spark: SparkSession, tmp_path: Path) -> None:
    table = simple(at(0, 600, 5, 700), ["a", "a", "b", "a"])
    run(spark, tmp_path, table, per_epoch=1, late="0 seconds", tumbling="1 minute")
    assert {key for key, *_ in windows_of(tmp_path)} == {"a"}
    assert late_ids(tmp_path) == [2]


def test_equal_late_rows_all_arrive_with_all_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = simple(at(0, 600, 5, 5, 5, None, None), ["a", "a", None, None, "b", "c", "c"])
    table = table.set_column(0, "id", pa.array([0, 1, 7, 7, 8, 9, 9]))
    for first in (False, True):
        home = tmp_path / str(first)
        run(spark, home, table, per_epoch=1 if first else 2, late="0 seconds", tumbling="1 minute", tasks=2)
        late = read_sink(home / "late").drop(["epoch"]).sort_by("id")
        assert late.equals(table.slice(2).cast(late.schema)), late


def test_rows_from_the_far_future_are_quarantined_and_do_not_move_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = simple(pa.concat_arrays([at(0, 30), pa.array([32_503_680_000_000_000]).cast(at(0).type), at(61)]))
    flow = hf.Flow("ahead")
    rows = flow.source("rows", hf.rows(table, per_epoch=1))
    stream = (
        rows.group_by("k").window("ts", tumbling="1 minute", max_ahead="1 day").agg(n=hf.count()).named("w")
    )
    stream.to(hf.parquet(str(tmp_path / "out"))).quarantine_to(hf.parquet(str(tmp_path / "quarantine")))
    flow.run(tmp_path / "work", drain=True, spark=spark)
    assert windows_of(tmp_path) == [("a", 0, 60, 2), ("a", 60, 120, 1)]
    assert read_sink(tmp_path / "quarantine")["id"].to_pylist() == [2]
    assert status(tmp_path / "work")["stages"]["w"]["aside"] == {"ahead": 1}


def test_without_a_bound_the_far_future_closes_all_before_it(spark: SparkSession, tmp_path: Path) -> None:
    table = simple(pa.concat_arrays([at(0), pa.array([32_503_680_000_000_000]).cast(at(0).type), at(30, 61)]))
    run(spark, tmp_path, table, per_epoch=1, tumbling="1 minute")
    assert late_ids(tmp_path) == [2, 3]
    assert [n for *_, n in windows_of(tmp_path)] == [1, 1]


def test_updates_give_every_change_and_the_last_is_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = events(3, 60, disorder_us=5 * MINUTE_US)
    run(spark, tmp_path, table, per_epoch=9, emit="updates", tumbling="10 minutes")
    changes = spark.read.parquet(str(tmp_path / "out")).drop("ids")
    keys = ["k", "window_start", "window_end"]
    newest = (
        changes.groupBy(*keys).agg(f.max_by(f.struct(*EXACT), "epoch").alias("row")).select(*keys, "row.*")
    )
    watermark = np.full(table.num_rows, np.iinfo(np.int64).min)
    assert_same_rows(newest, expected_windows(spark, table, watermark, "tumbling", EXACT))
    assert changes.count() > newest.count()
    assert changes.groupBy(*keys, "epoch").count().where("count > 1").count() == 0


def test_restarts_at_any_epoch_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = events(11, 96, disorder_us=10 * MINUTE_US)
    files = [table.slice(i * 8, 8) for i in range(12)]

    def flow(home: Path) -> hf.Flow:
        made = hf.Flow("restarts")
        schema = "id long, k string, v long, ts timestamp"
        source = hf.files(str(home / "in"), schema=schema, max_files_per_epoch=1)
        grouped = (
            made.source("rows", source).group_by("k").window("ts", session="3 minutes", late="10 minutes")
        )
        grouped.agg(**AGGREGATES).named("w").to(hf.parquet(str(home / "out")))
        return made

    for name, cuts in (("once", [12]), ("often", [1, 2, 5, 6, 9, 12])):
        home = tmp_path / name
        for first, stop in zip([0, *cuts], cuts, strict=False):
            write_files(home / "in", files[first:stop], first)
            flow(home).run(home / "work", until_idle=True, spark=spark, tasks=2)
        flow(home).run(home / "work", drain=True, spark=spark, tasks=3)
    once, often = (
        spark.read.parquet(str(tmp_path / name / "out")).drop("epoch") for name in ("once", "often")
    )
    assert_same_rows(often, once)


def test_closing_reads_what_it_closes_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """Rows examined inside the tasks follow the closed windows, not the state: counted by the operator itself."""
    from holdfast.spark.bind import bind
    from holdfast.spark.operators.contract import Times
    from holdfast.state.layer import LayerInfo, write_layer
    from holdfast.state.spine import Spine

    flow = hf.Flow("count")
    stream = flow.source("rows", hf.rows(simple(at(0)))).group_by("k").window("ts", tumbling="1 minute")
    stream.agg(n=hf.count()).named("w").to(hf.discard())
    from holdfast.flow.planner import plan

    (stage,) = bind(spark, plan(flow), {"rows": spark.createDataFrame(simple(at(0))).schema})
    operator = stage.operator
    assert operator is not None
    ends = START_US + np.repeat(np.arange(1, 51), 200) * MINUTE_US
    rows = len(ends)
    h = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, rows)
    columns = [pa.array(ends), pa.array(h), pa.repeat(True, rows), pa.array([f"k{i}" for i in range(rows)])]
    changes = pa.table([*columns, pa.array(np.ones(rows, np.int64))], operator.state.changes)
    layer = LayerInfo(0, 0, write_layer(tmp_path, "layer", changes, operator.state, (0, 4096)))
    spine = Spine(tmp_path, operator.state, [layer], (0, 4096))
    times = Times(START_US + 2 * MINUTE_US, START_US)
    closed = operator.apply(operator.received.empty_table(), spine, times)
    assert closed.outputs["out"].num_rows == 400
    assert spine.rows_examined == 400
    assert closed.keys_added == -400


def test_bad_windows_say_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    def planned(time: str, **options: object) -> None:
        flow = hf.Flow("bad")
        rows = flow.source("rows", hf.rows(simple(at(0))))
        rows.group_by("k").window(time, tumbling="1 minute", **options).agg(n=hf.count()).to(hf.discard())  # type: ignore[arg-type]
        flow.run(tmp_path / "work", until_idle=True, spark=spark)

    with pytest.raises(PlanError, match="no time column 'when'.*id, k, v, ts"):
        planned("when")
    with pytest.raises(PlanError, match="'v' is a bigint, not a timestamp"):
        planned("v")
