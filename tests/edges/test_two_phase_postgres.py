"""A target of the user's own on PostgreSQL's prepared transactions: prepared, decided, committed, whatever cuts it off."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors, sql

from edges.conftest import roll_back_prepared
from edges.tables import read, run
from holdfast.edges import TwoPhase
from holdfast.testing import Doubtful, TwoPhaseSuite
from holdfast.testing.epochs import SCHEMA


class Prepared(TwoPhase):
    """Rows and their token in one prepared transaction: the token tells a commit that was done from one that was lost."""

    def __init__(self, url: str, table: str) -> None:
        self._url, self._table = url, sql.Identifier(table)

    def prepare(self, token: str, epoch: int, rows: pa.RecordBatchReader) -> None:
        with psycopg.connect(self._url, autocommit=True) as session:
            session.execute("BEGIN")
            session.execute("INSERT INTO committed VALUES (%s)", [token])
            with session.cursor() as cursor:
                insert = sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(self._table)
                cursor.executemany(insert, [tuple(row.values()) for row in rows.read_all().to_pylist()])
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(token)))

    def commit(self, token: str) -> bool:
        with psycopg.connect(self._url, autocommit=True) as session:
            try:
                session.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(token)))
            except errors.UndefinedObject:
                found = session.execute("SELECT 1 FROM committed WHERE token = %s", [token]).fetchone()
                return found is not None
        return True

    def abort(self, token: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as session:
            try:
                session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(token)))
            except errors.UndefinedObject:
                return

    def in_doubt(self, prefix: str) -> Iterable[str]:
        found = run(self._url, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [gid for (gid,) in found if gid.startswith(prefix)]


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[str]:
    """A database for all tests of this file."""
    name = f"test_{uuid.uuid4().hex}"
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    run(postgres_url, f"create database {name}")
    run(url, "create table committed (token text primary key)")
    yield url
    roll_back_prepared(url)
    run(postgres_url, f"drop database {name} with (force)")


class TestPrepared(TwoPhaseSuite):
    @pytest.fixture(autouse=True)
    def _on(self, server: str) -> Iterator[None]:
        if run(server, "show max_prepared_transactions") == [("0",)]:
            pytest.skip("the server has prepared transactions turned off")
        self.url = server
        run(server, "truncate committed")
        yield
        roll_back_prepared(server)

    def doubtful(self, place: Path) -> Doubtful:
        table = f"t_{uuid.uuid4().hex}"
        run(self.url, f"create table {table} (value bigint, name text)")
        return Doubtful(lambda: Prepared(self.url, table), lambda: read(self.url, table, SCHEMA))
