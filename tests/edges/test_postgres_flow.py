"""Flows that end in a table of PostgreSQL, or keep their ledger there: tables equal a batch computation, whoever copied the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, write_files
from command import holdfast
from edges.tables import run, staged
from holdfast.bench import edges
from holdfast.bench.edges_contract import Where
from holdfast.core import crashpoints, limits
from holdfast.ledger.location import PASSWORD_VARIABLE, POINTER_NAME
from holdfast.sinks import postgres_tasks
from holdfast.sinks.postgres_tasks import StagingTask
from holdfast.spark.session import make_session
from pages import blocks
from postgres_ledger import without_password

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = pa.table(
    {
        "k": pa.array([None if i % 11 == 0 else i % 7 for i in range(210)], pa.int64()),
        "s": pa.array([None if i % 5 == 0 else "ab"[i % 2] for i in range(210)]),
        "v": pa.array(list(range(210)), pa.int64()),
    }
)
FILES = [ROWS.slice(i * 70, 70) for i in range(3)]
SCHEMA = "k long, s string, v long"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("tests", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> list[StagingTask]:
    """Every epoch with two segments counts as large; gives what tasks were told."""
    monkeypatch.setattr(limits, "SINK_TASKS_ROWS_MIN", 1)
    told: list[StagingTask] = []
    stage = postgres_tasks.stage_by_tasks

    def noted(session: SparkSession, task: StagingTask) -> list[str]:
        told.append(task)
        return stage(session, task)

    monkeypatch.setattr("holdfast.sinks.postgres_staging.stage_by_tasks", noted)
    return told


def flow_of(home: Path, url: str) -> hf.Flow:
    """An aggregate that is upserted, and rows that are appended."""
    flow = hf.Flow("totals")
    rows = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    totals = rows.group_by("k", "s").agg(total=hf.sum("v"), n=hf.count())
    totals.named("totals").to(hf.table(url, "totals", key=["k", "s"])).to(hf.table(url, "public.changes"))
    return flow


def check(spark: SparkSession, url: str, files: int) -> None:
    wanted = batch(
        spark,
        spark.createDataFrame(ROWS.slice(0, files * 70)),
        ["k", "s"],
        {"total": "sum(v)", "n": "count(1)"},
    )
    columns = "k long, s string, total long, n long"
    found = run(url, "select k, s, total::bigint, n from totals")
    assert_same_rows(spark.createDataFrame(found, columns), wanted)
    last = run(url, "select distinct on (k, s) k, s, total::bigint, n from changes order by k, s, n desc")
    assert_same_rows(spark.createDataFrame(last, columns), wanted)


def test_an_aggregate_equals_a_batch_through_restarts_and_lost_connections(
    spark: SparkSession, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, file in enumerate(FILES[:2]):
        write_files(tmp_path / "in", [file], first=number)
        left = ["sink.after_publish"] * number

        def reach(point: str, left: list[str] = left) -> None:
            if point in left:
                left.remove(point)
                run(postgres, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name like 'holdfast:%' and datname = current_database()")  # fmt: skip

        monkeypatch.setattr(crashpoints, "reach", reach)
        flow_of(tmp_path, postgres).run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
        assert left == []
        check(spark, postgres, number + 1)
    assert run(postgres, "select target, epoch from holdfast_sinks order by target") == [
        ("changes", 1),
        ("totals", 1),
    ]


def test_tasks_copy_a_large_epoch_and_leave_nothing_behind(
    spark: SparkSession, tmp_path: Path, postgres: str, by_tasks: list[StagingTask]
) -> None:
    write_files(tmp_path / "in", FILES)
    flow_of(tmp_path, postgres).run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    assert len(by_tasks) == 3
    assert all(len(task.shares) == 2 for task in by_tasks)
    check(spark, postgres, 3)
    assert staged(postgres) == 0
    secret = str(urlsplit(postgres).password)
    assert secret not in repr(by_tasks[0])
    assert not [key for key, value in spark.conf.getAll.items() if secret in value]


def test_what_a_task_cannot_copy_is_said_as_if_the_driver_had(
    spark: SparkSession, tmp_path: Path, postgres: str, by_tasks: list[StagingTask]
) -> None:
    flow = hf.Flow("nul")
    rows = flow.source("rows", hf.rows(pa.table({"k": list(range(8)), "t": ["a\0b"] * 8})))
    firsts = rows.group_by("k").agg(t=hf.max("t"))
    firsts.named("firsts").to(hf.table(postgres, "firsts", key="k"))
    with pytest.raises(hf.SinkError, match="the column 't' has text with a NUL character"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    assert by_tasks
    assert run(postgres, "select count(*) from firsts") == [(0,)]
    assert staged(postgres) == 0


def test_the_tables_of_the_page_are_upserted_and_appended(
    spark: SparkSession, tmp_path: Path, postgres: str
) -> None:
    (code,) = blocks(DOCS / "POSTGRES.md", "python")
    flow = hf.Flow("shop")
    source = hf.files(str(tmp_path / "in"), schema="user string, amount long", max_files_per_epoch=1)
    orders = flow.source("orders", source)
    totals = orders.group_by("user").agg(total=hf.sum("amount")).named("totals")
    large = orders.where("amount >= 100").named("large")
    run(postgres, "create schema reports")
    code = code.replace("postgresql://shop:secret@db.example.com/shop", postgres)
    exec(code, {"hf": hf, "totals": totals, "large": large})
    write_files(tmp_path / "in", [pa.table({"user": ["x", "y"], "amount": [99, 100]})] * 2)
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    found = run(postgres, 'select "user", total::bigint from reports.totals order by "user"')
    assert found == [("x", 198), ("y", 200)]
    assert run(postgres, "select * from large_orders") == [("y", 100)] * 2


def test_the_ledger_of_the_page_is_in_the_database(
    spark: SparkSession, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks(DOCS / "LEDGER_POSTGRES.md", "python")
    flow, start = hf.Flow("orders"), hf.Flow.run
    flow.source("rows", hf.rows(ROWS)).group_by("k").agg(n=hf.count()).named("counts").to(hf.discard())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PASSWORD_VARIABLE, str(urlsplit(postgres).password))
    here = {"spark": spark, "until_idle": True}
    monkeypatch.setattr(hf.Flow, "run", lambda flow, *given, **named: start(flow, *given, **named, **here))
    shown = "postgresql://holdfast@db1:5432/ledgers"
    exec(code.replace(shown, without_password(postgres)), {"flow": flow})
    assert run(postgres, "select head from holdfast_orders.stages") == [(0,)]
    assert "counts" in holdfast("status").out
    left = {path.name for path in (tmp_path / "work" / "orders").iterdir()}
    assert POINTER_NAME in left
    assert "ledger.db" not in left


@pytest.mark.slow
def test_the_benchmark_of_sinks_runs(spark: SparkSession, tmp_path: Path, postgres: str, kafka: str) -> None:
    """Without Spark's driver for PostgreSQL, which the session has to be started with."""
    report = edges.run(
        tmp_path / "edges.json",
        where=Where(postgres, None, kafka),
        directory=tmp_path / "data",
        quick=True,
        spark=spark,
    )
    names = {figure.name for figure in report.figures}
    assert {
        "parquet_vs_spark",
        "exactly_once_over_plain",
        "staging_over_direct",
        "kafka_over_plain",
        "delta_over_plain",
    } <= names
    assert str(urlsplit(postgres).password) not in (tmp_path / "edges.json").read_text()
    assert run(postgres, "select count(*) from pg_namespace where nspname like 'bench\\_%'") == [(0,)]
