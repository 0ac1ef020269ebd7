"""Tables of PostgreSQL: the conformance suite on a real server, and what only this database does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from holdfast.sinks.table import TableSink
from holdfast.testing import SinkSuite, Target

PAIRS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[str]:
    """A database for all tests of this file; each takes a schema of its own."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def schema(server: str) -> str:
    """A schema of the test's own."""
    return new_schema(server)


def new_schema(url: str) -> str:
    name = f"s_{uuid.uuid4().hex[:12]}"
    run(url, f"create schema {name}")
    return name


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


class TestAppended(SinkSuite):
    nested = ()
    tears = 6
    key: tuple[str, ...] | None = None

    @pytest.fixture(autouse=True)
    def _on(self, server: str) -> None:
        self.url = server

    def target(self, schema: pa.Schema, place: Path) -> Target:
        where = f"{new_schema(self.url)}.out"
        return Target(
            lambda: TableSink(self.url, where, self.key, schema), lambda: read(self.url, where, schema)
        )


class TestUpserted(TestAppended):
    def target(self, schema: pa.Schema, place: Path) -> Target:
        self.key = (schema.names[0],)
        return super().target(schema, place)
