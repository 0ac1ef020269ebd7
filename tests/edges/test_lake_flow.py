"""Flows from and to tables of a lake, on Spark."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.core import crashpoints
from holdfast.core.crashpoints import Orders
from holdfast.flow.lake import DeltaSink, IcebergSink
from holdfast.flow.planner import plan
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.lake import lake_rows, lake_sink
from holdfast.spark.session import make_session
from holdfast.verify.home import Home, relocated
from holdfast.verify.reading import seen_in

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "LAKE.md").read_text()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("tests", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hf.Flow:
    """The flow of docs/LAKE.md, in a directory where its source has one version with rows."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("shop.py").write_text(code)
    put("ann", 50, 100, 150)
    return runpy.run_path("shop.py")["flow"]


def put(user: str, *amounts: int) -> None:
    prices = pa.array([Decimal(amount) for amount in amounts], pa.decimal128(10, 2))
    rows = pa.table({"user": [user] * len(amounts), "amount": prices, "day": ["mon"] * len(amounts)})
    write_deltalake("orders", rows, mode="append")


def large() -> list[tuple[str, int]]:
    rows = lake_rows(hf.delta("large/")).to_pylist()
    return sorted((row["user"], int(row["amount"])) for row in rows)


def changes() -> list[tuple[str, int]]:
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse/"}
    rows = lake_rows(hf.iceberg(catalog, "shop.totals")).to_pylist()
    return sorted((row["user"], row["n"]) for row in rows)


def test_the_flow_of_the_page_goes_on_while_others_compact_its_tables(
    shop: hf.Flow, spark: SparkSession
) -> None:
    shop.run("work", spark=spark, until_idle=True)
    assert large() == [("ann", 100), ("ann", 150)]
    assert changes() == [("ann", 3)]
    put("bob", 200)
    put("ann", 300)
    for table in ("orders", "large"):
        DeltaTable(table).optimize.compact()
    shop.run("work", spark=spark, until_idle=True)
    assert large() == [("ann", 100), ("ann", 150), ("ann", 300), ("bob", 200)]
    assert changes() == [("ann", 3), ("ann", 4), ("bob", 1)]


@pytest.mark.parametrize("point", ["sink.after_stage", "sink.after_publish"])
def test_a_run_that_fails_around_a_commit_is_gone_on_with_and_every_row_is_there_once(
    shop: hf.Flow, spark: SparkSession, point: str
) -> None:
    for failing in (1, 2):  # of two sinks
        put("bob", 200)
        crashpoints.obey(Orders(f"{point}:{failing}:raise"))
        try:
            with pytest.raises(hf.HoldfastError, match=point):
                shop.run("work", spark=spark, until_idle=True)
        finally:
            crashpoints.obey(crashpoints.NO_ORDERS)
        shop.run("work", spark=spark, until_idle=True)
        assert large() == [("ann", 100), ("ann", 150), *[("bob", 200)] * failing]
        assert changes() == [("ann", 3), *[("bob", n + 1) for n in range(failing)]]


def test_verify_moves_the_tables_and_reads_them_back(shop: hf.Flow, tmp_path: Path) -> None:
    home = Home(tmp_path / "home").made()
    moved = relocated(plan(shop), tmp_path, home)
    assert {seen.rows.num_rows for seen in seen_in(moved, home).values()} == {0}
    rows = pa.table({"user": ["ann"], "n": [1], "day": ["mon"]})
    file = tmp_path / "rows.parquet"
    pq.write_table(rows, file)
    for spec in moved.sinks:
        assert isinstance(spec.description, DeltaSink | IcebergSink)
        sink = lake_sink(spec.description, rows.schema)
        sink.open("shop", 0, 1)
        sink.publish(SinkRecord("shop", 0, 0, 0, 1), [file])
    assert [seen.rows.to_pylist() for seen in seen_in(moved, home).values()] == [rows.to_pylist()] * 2
    assert not Path("large").exists()
    assert not Path("catalog.db").exists()
