"""group_by() without columns: the total over everything, running and in windows, exact across epochs and restarts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import ddl, plans, read_sink, write_files
from command import holdfast
from event_time import START_US, at
from holdfast.flow.explain import explain
from holdfast.flow.planner import plan

EVENTS = pa.table(
    {
        "u": ["a", "b", "a", None, "c", "a", "x"],
        "v": [1, 2, 3, 4, None, 6, -1],
        "ts": at(1, 2, 3, 61, 62, 200, 201),
    }
)
# The second file has nothing that the transform lets through.
FILES = [EVENTS.slice(0, 3), EVENTS.slice(6, 1), EVENTS.slice(3, 3)]


def described(home: Path) -> hf.Flow:
    flow = hf.Flow("everything")
    files = hf.files(str(home / "in"), schema=ddl(EVENTS.schema), max_files_per_epoch=1)
    rows = flow.source("rows", files).transform(lambda df: df.where("v is null or v > 0"))
    total = rows.group_by().agg(n=hf.count(), s=hf.sum("v"), users=hf.count_distinct("u")).named("total")
    total.to(hf.parquet(str(home / "total")))
    keyed = total.transform(lambda df: df.selectExpr("'all' as name", "*"))
    keyed.to(hf.table(f"sqlite:///{home / 'shop.db'}", "totals", key="name"))
    minutes = (
        rows.group_by().window("ts", tumbling="1 minute").agg(n=hf.count(), users=hf.count_distinct("u"))
    )
    minutes.named("minutes").to(hf.parquet(str(home / "minutes")))
    visits = (
        rows.group_by().window("ts", session="60 seconds").agg(n=hf.count(), users=hf.count_distinct("u"))
    )
    visits.named("visits").to(hf.parquet(str(home / "visits")))
    return flow


def test_a_total_over_everything_running_in_windows_and_in_sessions(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", FILES[:2])
    described(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    write_files(tmp_path / "in", FILES[2:], first=2)
    described(tmp_path).run(tmp_path / "work", until_idle=True, drain=True, spark=spark, tasks=3)

    def found(name: str, *columns: str) -> list[tuple[object, ...]]:
        rows = read_sink(tmp_path / name).to_pylist()
        return sorted(tuple(row[column] for column in columns) for row in rows)

    assert found("total", "n", "s", "users") == [(3, 6, 2), (6, 16, 3)]
    assert read_sink(tmp_path / "total").column_names == ["n", "s", "users", "epoch"]
    assert found("minutes", "n", "users") == [(1, 1), (2, 1), (3, 2)]
    assert found("visits", "n", "users") == [(1, 1), (5, 3)]
    starts = {row[0].timestamp() * 1_000_000 - START_US for row in found("visits", "window_start")}
    assert starts == {1_000_000, 200_000_000}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        assert database.execute("select name, n, s, users from totals").fetchall() == [("all", 6, 16, 3)]
    state = holdfast("state", "total", "--work-dir", tmp_path / "work", "--json").json
    assert state["rows"] == [{"n": 6, "s": 16, "users": 3}]
    assert not any(plan["direct"] for plan in plans(tmp_path / "work", "total"))


def test_a_total_is_explained_without_keys(tmp_path: Path) -> None:
    stages = {stage["name"]: stage for stage in explain(plan(described(tmp_path)))["stages"]}
    assert stages["total"]["operator"]["keys"] == []
    assert stages["visits"]["operator"]["aggregates"]["users"] == "count(DISTINCT u)"
