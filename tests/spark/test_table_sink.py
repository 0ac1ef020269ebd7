"""Flows that end in a table of SQLite, or in a function: what the target holds equals a batch computation."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, read_sink, write_files

ROWS = pa.table(
    {
        "k": pa.array([None if i % 11 == 0 else i % 7 for i in range(210)], pa.int64()),
        "s": pa.array([None if i % 5 == 0 else "ab"[i % 2] for i in range(210)]),
        "v": pa.array(list(range(210)), pa.int64()),
        "ts": pa.array([i * 1_000_000 for i in range(210)], pa.timestamp("us", "UTC")),
    }
)
FILES = [ROWS.slice(i * 30, 30) for i in range(7)]
SCHEMA = "k long, s string, v long, ts timestamp"


def url(home: Path) -> str:
    return f"sqlite:///{home / 'out.db'}"


def query(home: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(home / "out.db")) as connection:
        return connection.execute(sql).fetchall()


def table_of(spark: SparkSession, home: Path, sql: str, schema: str) -> DataFrame:
    return spark.createDataFrame(query(home, sql), schema)


def files(flow: hf.Flow, home: Path):
    return flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))


def totals_flow(home: Path) -> hf.Flow:
    """One aggregate with two sinks."""
    flow = hf.Flow("totals")
    totals = files(flow, home).group_by("k", "s").agg(total=hf.sum("v"), n=hf.count(), mean=hf.avg("v"))
    totals.named("totals").to(hf.parquet(str(home / "out"))).to(hf.table(url(home), "totals", key=["k", "s"]))
    return flow


def test_an_aggregate_upserted_into_a_table_equals_a_batch_through_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    for first, part in ((0, FILES[:3]), (3, FILES[3:5]), (5, FILES[5:])):
        write_files(tmp_path / "in", part, first=first)
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
        so_far = spark.createDataFrame(ROWS.slice(0, (first + len(part)) * 30))
        aggregates = {"total": "sum(v)", "n": "count(1)", "mean": "avg(v)"}
        expected = batch(spark, so_far, ["k", "s"], aggregates)
        upserted = table_of(
            spark, tmp_path, "select * from totals", "k long, s string, total long, n long, mean double"
        )
        assert_same_rows(upserted, expected)
        assert_same_rows(last_per_key(spark, tmp_path / "out", ["k", "s"]), expected)
    assert query(tmp_path, "select flow, epoch, generation from holdfast_sinks") == [("totals", 6, 3)]
    assert query(tmp_path, "select count(*) from totals where k is null and s is null") == [(1,)]


def test_final_windows_are_appended_once_each(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    flow = hf.Flow("windows")
    windows = files(flow, tmp_path).group_by("s").window("ts", tumbling="20 seconds", late="5 seconds")
    windows.agg(total=hf.sum("v")).named("windows").to(hf.table(url(tmp_path), "windows"))
    flow.run(tmp_path / "work", drain=True, spark=spark)
    timed = spark.createDataFrame(ROWS).selectExpr("s", "v", "window(ts, '20 seconds') as w")
    expected = batch(
        spark,
        timed.selectExpr("s", "v", "cast(w.start as string) as start", "cast(w.end as string) as end"),
        ["s", "start", "end"],
        {"total": "sum(v)"},
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        sql = "select s, substr(window_start, 1, 19), substr(window_end, 1, 19), total from windows"
        assert_same_rows(
            table_of(spark, tmp_path, sql, "s string, start string, end string, total long"), expected
        )
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_late_rows_go_to_a_table_with_the_columns_of_the_input(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [FILES[6], FILES[0]])
    flow = hf.Flow("late")
    windows = files(flow, tmp_path).group_by("k").window("ts", tumbling="10 seconds").agg(n=hf.count())
    windows.to(hf.discard()).late_to(hf.table(url(tmp_path), "late"))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    late = query(tmp_path, "select k, s, v, ts from late order by v")
    expected = FILES[0].to_pylist()
    assert late == [(row["k"], row["s"], row["v"], f"{row['ts']:%Y-%m-%d %H:%M:%S.%f}") for row in expected]


def test_values_reach_the_table_as_spark_has_them(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("types")
    rows = flow.source("rows", hf.rows(pa.table({"i": [1]})))
    rows.transform(
        lambda df: df.selectExpr(
            "cast(i as tinyint) as tiny",
            "cast(1.10 as decimal(5, 2)) as price",
            "double('NaN') as nan",
            "date'2026-01-31' as day",
            "timestamp'2026-01-31 12:00:00 Europe/Berlin' as zoned",
            "timestamp_ntz'2026-01-31 12:00:00' as local",
            "true as yes",
            "X'00ff' as bytes",
            "cast(null as string) as nothing",
        )
    ).to(hf.table(url(tmp_path), "types"))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert query(tmp_path, "select * from types") == [
        (1, "1.10", "NaN", "2026-01-31", "2026-01-31 11:00:00.000000", "2026-01-31 12:00:00.000000", 1, b"\0\xff", None)
    ]  # fmt: skip


def test_a_table_that_is_ahead_or_behind_stops_the_flow(spark: SparkSession, tmp_path: Path) -> None:
    def flow() -> hf.Flow:
        flow = hf.Flow("counts")
        files(flow, tmp_path).group_by("k").agg(n=hf.count()).to(hf.table(url(tmp_path), "counts", key="k"))
        return flow

    write_files(tmp_path / "in", FILES[:2])
    flow().run(tmp_path / "work", until_idle=True, spark=spark)
    with pytest.raises(hf.SinkError, match="ahead of the ledger"):
        flow().run(tmp_path / "other", until_idle=True, spark=spark)
    (tmp_path / "out.db").unlink()
    with pytest.raises(hf.SinkError, match="behind the ledger"):
        flow().run(tmp_path / "work", until_idle=True, spark=spark)


# A function as a sink


def test_a_function_gets_every_epoch_and_again_with_the_same_token_what_it_failed_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls: list[tuple[list[int], int, str]] = []
    broken = [True]

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        calls.append((sorted(rows["v"].to_pylist()), epoch, token))
        if epoch == 2 and broken:
            raise ConnectionError("no route")

    def run() -> None:
        flow = hf.Flow("calls")
        few = files(flow, tmp_path).transform(lambda df: df.where("v < 60 or v >= 90").select("v"))
        few.named("few").to(hf.foreach(send, idempotent=True)).to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark)

    write_files(tmp_path / "in", [*FILES[:2], FILES[3]])
    with pytest.raises(hf.SinkError, match="sink 'few-sink-1' raised ConnectionError: no route") as caught:
        run()
    assert (caught.value.stage, caught.value.epoch) == ("few", 2)
    assert isinstance(caught.value.__cause__, ConnectionError)
    broken.clear()
    write_files(tmp_path / "in", [FILES[2], FILES[4]], first=3)
    run()
    values = [sorted(file["v"].to_pylist()) for file in FILES]
    expected = [(values[0], 0), (values[1], 1), (values[3], 2), (values[3], 2), (values[4], 4)]
    assert [(rows, epoch) for rows, epoch, _ in calls] == expected
    assert len({token for *_, token in calls}) == 4
    assert calls[2] == calls[3]
    assert sorted(read_sink(tmp_path / "out")["v"].to_pylist()) == sorted(
        v for i in (0, 1, 3, 4) for v in values[i]
    )


# What is refused before anything runs


def test_what_a_sink_cannot_take_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    def refused(build) -> str:
        flow = hf.Flow("refused")
        build(flow.source("rows", hf.rows(pa.table({"k": [1], "v": [2]}))))
        with pytest.raises(hf.PlanError) as caught:
            flow.run(tmp_path / "work", until_idle=True, spark=spark)
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.db").exists()
        return str(caught.value)

    out, table = str(tmp_path / "out"), hf.table(url(tmp_path), "t")
    epochs = refused(
        lambda rows: rows.group_by("k").agg(Epoch=hf.count()).named("counts").to(hf.parquet(out))
    )
    assert "stage 'counts'" in epochs
    assert "'Epoch' would be hidden" in epochs
    assert "Rename the column" in epochs
    nested = refused(lambda rows: rows.transform(lambda df: df.selectExpr("array(k) as ks")).to(table))
    assert "cannot store the column 'ks'" in nested
    assert "to_json" in nested
    key = refused(lambda rows: rows.to(hf.table(url(tmp_path), "t", key=["user"])))
    assert "no column 'user'" in key
    assert "The columns are k, v" in key
    assert "have one target" in refused(lambda rows: rows.to(table).to(hf.table(url(tmp_path), "T", key="k")))
    assert "have one target" in refused(lambda rows: rows.to(hf.parquet(out)).to(hf.parquet(out + "/")))
    assert "have one target" in refused(
        lambda rows: rows.to(hf.parquet(out)).to(hf.parquet(out, single_file=True))
    )
