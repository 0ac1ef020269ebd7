"""Flows that end in a table of SQLite, or in a function: what the target holds equals a batch computation."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, write_files

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
