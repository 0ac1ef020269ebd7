"""Tables of PostgreSQL as tests feed and read them."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.sinks.table import TableSink
from holdfast.testing.epochs import FLOW, record

PAIRS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])


def run(url: str, *statements: str) -> list[tuple]:
    """Run statements, each in a transaction of its own; the rows of the last."""
    rows: list[tuple] = []
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("set timezone = 'UTC'")
        for statement in statements:
            cursor = session.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def read(url: str, where: str, schema: pa.Schema) -> pa.Table:
    """All rows of a table as a reader who knows the columns takes them; none if there is no table."""
    if run(url, f"select to_regclass('{where}')") == [(None,)]:
        return schema.empty_table()
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
    rows = run(url, f"select {names} from {where}")
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


class Fed:
    """A table and the epochs that it is given."""

    def __init__(
        self, home: Path, url: str, where: str, columns: pa.Schema, key: list[str] | None = None
    ) -> None:
        self.home, self.url, self.where, self.schema = home, url, where, columns
        self.sink = TableSink(url, where, key, columns)
        self.epoch = 0

    def open(self) -> Fed:
        self.sink.open(FLOW, 0, 1)
        return self

    def segments(self, *parts: list[tuple]) -> list[Path]:
        paths = []
        for number, rows in enumerate(parts):
            columns = zip(*rows, strict=True) if rows else [[] for _ in self.schema]
            arrays = [
                pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)
            ]
            paths.append(self.home / f"{self.epoch}-{number}.parquet")
            pq.write_table(pa.table(arrays, schema=self.schema), paths[-1])
        return paths

    def give(self, *parts: list[tuple]) -> None:
        """Publish an epoch; every part is a segment."""
        self.sink.publish(record(self.epoch), self.segments(*parts))
        self.epoch += 1

    def rows(self, statement: str = "select * from {}") -> list[tuple]:
        return sorted(run(self.url, statement.format(self.where)), key=repr)


def staged(url: str) -> int:
    """How many staging tables there are."""
    return run(url, "select count(*) from pg_tables where schemaname = 'holdfast_staging'")[0][0]
