"""Iceberg tables as targets, in a catalog of SQLite's."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core.errors import FencedError, PlanError, SinkError
from holdfast.flow.lake import IcebergSink, iceberg
from holdfast.sinks.iceberg import catalog_of
from holdfast.sinks.lake import lake_rows, lake_sink
from holdfast.testing import Target, epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, feed, record, segments
from lake_suite import LakeSuite


def described(place: Path, partition_by: str | None = None) -> IcebergSink:
    place.mkdir(parents=True, exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"{place}/warehouse"}
    return iceberg(catalog, "shop.orders", partition_by=partition_by)


class TestIcebergSink(LakeSuite):
    def describe(self, place: Path, partition_by: str | None = None) -> IcebergSink:
        return described(place, partition_by)

    def create(self, description: IcebergSink, schema: pa.Schema) -> None:
        catalog = catalog_of(description)
        catalog.create_namespace_if_not_exists("shop")
        columns = pa.schema([column.with_nullable(True) for column in schema])
        catalog.create_table(description.table, columns)

    def append(self, description: IcebergSink, rows: pa.Table) -> None:
        table = catalog_of(description).load_table(description.table)
        table.append(rows.cast(pa.schema([column.with_nullable(True) for column in rows.schema])))

    def disturb(self, description: IcebergSink) -> None:
        self.append(description, SCHEMA.empty_table())

    def rewrite(self, description: IcebergSink) -> None:
        table = catalog_of(description).load_table(description.table)
        table.overwrite(table.scan().to_arrow())

    def maintain(self, description: IcebergSink) -> None:
        table = catalog_of(description).load_table(description.table)
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
        assert len(table.refresh().snapshots()) == 1

    def drop(self, description: IcebergSink) -> None:
        catalog_of(description).drop_table(description.table)

    def test_a_table_that_asks_for_retries_gets_none_from_a_zombie(
        self, stream: Target, description, directory: Path, at
    ) -> None:
        zombie, successor = stream.sink(), stream.sink()
        zombie.open(FLOW, 0, 1)
        with catalog_of(description).load_table(description.table).transaction() as transaction:
            transaction.set_properties({"commit.retry.num-retries": "50"})
        at("sink.after_stage", lambda: successor.open(FLOW, 0, 2))
        with pytest.raises(FencedError):
            zombie.publish(record(0), segments(directory, 0))
        assert stream.values() == []
        properties = catalog_of(description).load_table(description.table).properties
        assert properties["commit.retry.num-retries"] == "50"


def test_a_column_that_the_stage_has_not_is_null(tmp_path: Path) -> None:
    description = described(tmp_path / "t")
    catalog = catalog_of(description)
    catalog.create_namespace("shop")
    columns = pa.schema([("note", pa.string()), ("name", pa.string()), ("value", pa.int64())])
    catalog.create_table(description.table, columns)
    feed(lake_sink(description, SCHEMA), epochs.write_segments(tmp_path / "segments"), generation=1)
    rows = lake_rows(description)
    assert sorted(rows["value"].to_pylist()) == expected()
    assert rows["note"].null_count == rows.num_rows


def test_a_conflict_does_not_write_the_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    description = described(tmp_path / "t")
    sink = lake_sink(description, SCHEMA)
    sink.open(FLOW, 0, 1)
    table, suite = sink._table, TestIcebergSink()  # type: ignore[attr-defined]
    commit = table.commit

    def late(*given):
        monkeypatch.undo()
        suite.append(description, epochs.rows([1000]))
        return commit(*given)

    monkeypatch.setattr(table, "commit", late)
    sink.publish(record(0), segments(epochs.write_segments(tmp_path / "segments"), 0))
    assert sorted(lake_rows(description)["value"].to_pylist()) == [*expected(until=1), 1000]
    assert len(list((tmp_path / "t" / "warehouse").rglob("*.parquet"))) == 2


@pytest.mark.parametrize("table", ["orders", "shop.", ".orders", ""])
def test_a_table_without_a_namespace_is_refused(table: str) -> None:
    with pytest.raises(PlanError, match="does not name a table"):
        iceberg("mine", table)


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/no/where.db",
        "s3.secret-access-key": "hush-hush",
    }
    rest = {"type": "rest", "uri": "http://me:whisper@127.0.0.1:1", "token": "hush-hush"}
    for catalog in (settings, rest):
        description = iceberg({**catalog, "warehouse": str(tmp_path)}, "shop.orders")
        with pytest.raises(SinkError) as raised:
            lake_sink(description, SCHEMA).open(FLOW, 0, 1)
        for text in (repr(description), repr(description.facts), str(raised.value)):
            assert "hush" not in text
            assert "whisper" not in text


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    monkeypatch.delitem(sys.modules, "holdfast.sinks.iceberg", raising=False)
    with pytest.raises(PlanError, match=r"pip install 'holdfast\[iceberg\]'"):
        lake_sink(iceberg("mine", "shop.orders"), SCHEMA)
