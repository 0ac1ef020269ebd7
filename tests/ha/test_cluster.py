"""A flow on a cluster of executors: exact, and cut into as many tasks as there are cores and rows for."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa

import cluster_flow
from batch import write_files
from cluster import SETTINGS, standalone
from cluster_flow import LARGE, SMALL, table
from guard import HOLDFAST
from holdfast.ledger.ledger import reading

CORES = 2
FLOW = Path(cluster_flow.__file__)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster"), CORES) as found:
        yield found


def run(home: Path, master: str) -> None:
    """`holdfast run` as a user types it, with Spark's own account of all its jobs."""
    log = home / "events"
    log.mkdir(exist_ok=True)
    events = {"enabled": "true", "dir": log.as_uri(), "rolling.enabled": "false", "compress": "false"}
    settings = SETTINGS | {f"spark.eventLog.{key}": value for key, value in events.items()}
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [HOLDFAST, "run", str(FLOW), "--work-dir", str(home / "work"), "--master", master, "--drain", *conf],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CLUSTER_HOME": str(home)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def tasks_of_stages(home: Path) -> list[int]:
    """How many tasks each stage of each Spark job had."""
    lines = [line for file in (home / "events").iterdir() for line in file.read_text().splitlines()]
    started = [json.loads(line) for line in lines if '"SparkListenerStageSubmitted"' in line]
    return [event["Stage Info"]["Number of Tasks"] for event in started]


def planned(home: Path, stage: str) -> list[tuple[int, int]]:
    """By epoch, the rows that a plan reads, and the tasks that it spreads them over."""
    with reading(home / "work") as tx:
        query = "select body from plans where stage = :stage order by epoch"
        bodies = [json.loads(body) for (body,) in tx.execute(sa.text(query), {"stage": stage})]
    return [(body["rows"], len(body["boundaries"]) - 1) for body in bodies]


def check(home: Path, fed: pa.Table) -> None:
    """Both sinks equal a batch computation over all that was fed."""
    kept = "from fed where v is null or v % 10 != 0"
    with closing(sqlite3.connect(home / "out.db")) as database:
        found = database.execute("select k, n, total, hi from totals").fetchall()
    totals = f"select k, count(*), sum(v), max(v) {kept} group by k"
    assert sorted(found, key=repr) == sorted(duckdb.sql(totals).fetchall(), key=repr)
    hours = (
        f"select k, epoch_us(time_bucket(interval 1 hour, ts)) as start, count(*) as n {kept} group by all"
    )
    out = f"select k, epoch_us(window_start) as start, n from '{home}/hourly/**/*.parquet'"
    assert duckdb.sql(f"({hours}) except all ({out})").fetchall() == []
    assert duckdb.sql(f"({out}) except all ({hours})").fetchall() == []


@pytest.mark.timeout(600)
def test_a_flow_on_a_cluster_is_exact_and_has_no_more_tasks_than_cores(address: str, tmp_path: Path) -> None:
    """Large epochs go over both executors, also where rows are grouped before the exchange; small ones do not."""
    sizes = [LARGE, LARGE, SMALL]
    tables = [table(number, rows) for number, rows in enumerate(sizes)]
    write_files(tmp_path / "in", tables)
    run(tmp_path, address)
    check(tmp_path, pa.concat_tables(tables))
    assert planned(tmp_path, "totals") == [(LARGE, CORES), (LARGE, CORES), (SMALL, 1)]
    assert max(tasks_of_stages(tmp_path)) <= CORES


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_epoch_on_a_cluster_takes_at_most_three_times_as_long_as_on_local_cores(
    address: str, tmp_path: Path
) -> None:
    tables = [table(number, 10_000) for number in range(20)]
    taken: dict[str, list[float]] = {"local[2]": [], address: []}
    for number, master in enumerate(["local[2]", address] * 2):
        home = tmp_path / str(number)
        write_files(home / "in", tables)
        run(home, master)
        check(home, pa.concat_tables(tables))
        with reading(home / "work") as tx:
            query = "select body from manifests where stage = 'totals' order by epoch"
            seconds = [json.loads(body)["seconds"] for (body,) in tx.execute(sa.text(query))]
        taken[master] += seconds[5:20]  # the first ones start Python workers, and compile
    local, there = (statistics.median(times) for times in taken.values())
    print(f"an epoch of 10,000 rows: {local:.3f} s on local[2], {there:.3f} s on the cluster")
    assert there <= 3 * local
