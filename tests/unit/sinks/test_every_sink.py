"""The conformance suite on the sinks that need no server, and what only their tests can look at."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import SinkError
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.table import TableSink
from holdfast.testing import SinkSuite, Target
from holdfast.testing.epochs import FLOW, expected, feed, record, segments
from unit.sinks.kinds import Kind


class TestDirectories(SinkSuite):
    reads_rows = False

    def target(self, schema: pa.Schema, place: Path) -> Target:
        def rows() -> pa.Table:
            files = sorted(place.glob("epoch=*/*.parquet"))
            return pa.concat_tables(
                [pq.read_table(path, partitioning=None) for path in files] or [schema.empty_table()]
            )

        return Target(lambda: ParquetSink(place, schema=schema), rows)


class TestSingleFiles(SinkSuite):
    reads_rows = False

    def target(self, schema: pa.Schema, place: Path) -> Target:
        def rows() -> pa.Table:
            return ds.dataset(place, schema=schema).to_table() if place.exists() else schema.empty_table()

        return Target(lambda: ParquetSink(place, single_file=True, schema=schema), rows)


class TestAppendedTable(SinkSuite):
    key: list[str] | None = None
    nested = ()

    def target(self, schema: pa.Schema, place: Path) -> Target:
        file = place.with_suffix(".db")
        return Target(
            lambda: TableSink(f"sqlite:///{file}", "out", self.key, schema), lambda: in_sqlite(file, schema)
        )

    def as_read(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        # SQLite has one zero.
        return pc.add(column, 0.0) if name == "zero" else column


class TestUpsertedTable(TestAppendedTable):
    key = ["n"]  # noqa: RUF012

    def target(self, schema: pa.Schema, place: Path) -> Target:
        self.key = [schema.names[0]]
        return super().target(schema, place)


def in_sqlite(file: Path, schema: pa.Schema) -> pa.Table:
    """The rows as a reader who knows the columns' meaning takes them."""
    with closing(sqlite3.connect(file)) as database:
        if not database.execute("select 1 from sqlite_master where name = 'out'").fetchone():
            return schema.empty_table()
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
        found = database.execute(f"select {names} from out").fetchall()
    columns = [
        pa.array([None if row[i] is None else _meant(row[i], field.type) for row in found], field.type)
        for i, field in enumerate(schema)
    ]
    return pa.table(columns, schema=schema)


def _meant(value: object, kind: pa.DataType) -> object:
    if pa.types.is_decimal(kind):
        return pa.scalar(str(value)).cast(kind).as_py()
    if pa.types.is_timestamp(kind):
        moment = dt.datetime.fromisoformat(str(value))
        return moment.replace(tzinfo=dt.UTC) if kind.tz else moment
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(str(value))
    if pa.types.is_boolean(kind):
        return bool(value)
    return float(str(value)) if pa.types.is_floating(kind) else value


def test_nothing_is_left_over(kind: Kind, target: Path, directory: Path) -> None:
    feed(kind.sink(target), directory, generation=1)
    assert kind.visible(target) == expected()
    assert kind.leftovers(target) == []


def test_what_is_replayed_or_refused_leaves_no_trace(kind: Kind, target: Path, directory: Path) -> None:
    sink = kind.sink(target)
    feed(sink, directory, generation=1, until=3)
    before = kind.snapshot(target)
    sink.publish(record(2), segments(directory, 2))
    with pytest.raises(SinkError, match="gap"):
        sink.publish(record(4), segments(directory, 4))
    successor = kind.sink(target)
    assert successor.open(FLOW, 0, 2) == record(2)
    successor.publish(record(2, generation=2), segments(directory, 2))
    assert kind.snapshot(target) == before
