"""PostgreSQL as the database of a table sink.

The record is in the schema of the table, so whoever names the table, by whatever search path, finds the same record.
Sessions carry the claim of their opening in `application_name`: an opening that is replaced may stand still inside its
transaction, with the record locked, and its successor ends it there. What a session had committed by then stays, and
the record says so.

Null is a key like any other: the index over the key is `NULLS NOT DISTINCT`, which PostgreSQL has from version 15 on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Connection, Engine

from holdfast.core import limits
from holdfast.core.errors import PlanError, SinkError
from holdfast.core.reserved import KEY_INDEX_PREFIX
from holdfast.flow import table_names
from holdfast.sinks import postgres_engine, postgres_errors, postgres_types, table_record
from holdfast.sinks.database import Column, Database, Epoch, Staged
from holdfast.sinks.postgres_copy import Room
from holdfast.sinks.postgres_engine import quoted
from holdfast.sinks.postgres_staging import staged_rows

VERSION_MIN = 150000
NAME_BYTES_MAX = 63

# Columns that every table of PostgreSQL has already.
_TAKEN = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

# Openings of tables take turns: two that make the record table at the same time would disturb each other.
_OPENINGS = int.from_bytes(hashlib.blake2b(table_record.NAME.encode(), digest_size=4).digest(), "big")

_COLUMNS = sa.text("""
    SELECT a.attname, format_type(a.atttypid, a.atttypmod),
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
    FROM pg_attribute a
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
""")

# The columns of unique indexes that hold at once and for every row, and whether each could be found twice for being null.
_INDEXES = sa.text("""
    SELECT i.indexrelid::bigint, a.attname, i.indnullsnotdistinct OR a.attnotnull
    FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (attnum, n), pg_attribute a
    WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
      AND k.n <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum
""")

_END = sa.text("""
    SELECT count(pg_terminate_backend(pid, :patience)) FROM pg_stat_activity
    WHERE application_name = :application AND datname = current_database() AND usename = current_user
      AND pid <> pg_backend_pid()
""")


class Postgres(Database):
    """One table of a database on a server."""

    failures = (sa.exc.SQLAlchemyError, adbc_driver_manager.Error, pa.ArrowException, OSError)

    def __init__(self, url: str, table: str, spark: SparkSession | None = None) -> None:
        self._url = sa.make_url(url)
        self._schema, self._table = table_names.in_postgres(table)
        self._spark = spark
        self._claim = ""
        self._engine: Engine | None = None

    def __str__(self) -> str:
        return f"{self._url.host or 'localhost'}/{self._url.database}"

    @property
    def target(self) -> str:
        """The table's name: the record is in the same schema."""
        return self._table

    @property
    def place(self) -> object:
        """The server, the database, and the table by the name that the flow gives it."""
        return (
            "postgresql",
            self._url.host,
            self._url.port or 5432,
            self._url.database,
            self._schema,
            self._table,
        )

    @property
    def dialect(self) -> sa.Dialect:
        """How SQLAlchemy writes for PostgreSQL."""
        return postgres_engine.Dialect()

    # Columns

    def fold(self, name: str) -> str:
        """Every name is quoted, so every letter counts."""
        return name

    def named(self, columns: Sequence[str]) -> sa.quoted_name:
        """The table's name, without its schema: transactions know in which one they are."""
        for name in (*filter(None, [self._schema]), self._table, *columns):
            if len(name.encode()) > NAME_BYTES_MAX:
                raise PlanError(
                    f"{name!r} is {len(name.encode())} bytes long, and PostgreSQL would cut it to {NAME_BYTES_MAX}",
                    operation="plan",
                    hint="Give the table, or the column, a shorter name.",
                )
        taken = [name for name in columns if name in _TAKEN or not name or "\0" in name]
        if taken or self._table == table_record.NAME:
            raise PlanError(
                f"{(taken or [self._table])[0]!r} cannot be a name of yours in PostgreSQL",
                operation="plan",
                hint="Rename the column in a transform before the sink, or use another table.",
            )
        return sa.quoted_name(self._table, quote=True)

    def declared(self, kind: pa.DataType) -> sa.types.TypeEngine[Any] | None:
        """The type to declare for a column of an Arrow type."""
        return postgres_types.declared(kind)

    def columns(self, tx: Connection) -> dict[str, Column]:
        """The columns of the table by name."""
        found = tx.execute(_COLUMNS, {"name": self.room().table})
        return {name: Column(declared, bool(needed)) for name, declared, needed in found}

    def keeps(self, declared: str, kind: pa.DataType) -> bool:
        """Whether a column of the declared type gives back what is stored in it."""
        return postgres_types.conversion(declared, kind) is not None

    def make_key(self, tx: Connection, table: sa.Table, key: Sequence[str]) -> None:
        """Have an index over the key for which a null equals a null: every upsert finds its rows by it."""
        if not self._has_key(tx, key):
            name, columns = quoted(f"{KEY_INDEX_PREFIX}{_digest(self._table)}"), ", ".join(map(quoted, key))
            tx.exec_driver_sql(
                f"CREATE UNIQUE INDEX {name} ON {self.room().table} ({columns}) NULLS NOT DISTINCT"
            )

    def _has_key(self, tx: Connection, key: Sequence[str]) -> bool:
        indexes: dict[int, set[tuple[str, bool]]] = {}
        for index, column, tells_nulls in tx.execute(_INDEXES, {"name": self.room().table}):
            indexes.setdefault(index, set()).add((column, tells_nulls))
        return {(name, True) for name in key} in indexes.values()

    # Transactions

    def prepare(self, claim: str) -> None:
        """Connect in the name of the claim, and find out in which schema the table is."""
        self.close()
        self._claim = claim
        self._engine = postgres_engine.engine(postgres_engine.conninfo(self._url, _application(claim)))
        with self._engine.connect() as connection:
            version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
            here = connection.exec_driver_sql("SELECT current_schema()::text").scalar_one()
        if version < VERSION_MIN:
            raise SinkError(
                f"{self} is PostgreSQL {version // 10_000}, and the sink needs {VERSION_MIN // 10_000} or newer",
                operation="open",
                hint="Null is a key like any other only since then.",
            )
        self._schema = self._schema or here
        if self._schema is None:
            raise SinkError(
                f"{self} has no schema that new tables go to",
                operation="open",
                hint='Name the table with its schema, "schema.table", or set the search_path of the role.',
            )

    @contextmanager
    def opening(self) -> Iterator[Connection]:
        """A transaction beside which nobody else opens a table of the database."""
        with self.write() as tx:
            tx.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_OPENINGS})")
            yield tx

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A view of what is committed; nothing that is done in it stays."""
        with self._connection() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction."""
        with self._connection() as connection, connection.begin():
            yield connection

    def end_sessions(self, tx: Connection, claim: str) -> None:
        """End all sessions of an opening, its tasks' included; only those of the same role can be."""
        asked = {"application": _application(claim), "patience": limits.SINK_BUSY_MS_MAX}
        tx.execute(_END, asked)

    def close(self) -> None:
        """Close the connection."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connection(self) -> Connection:
        assert self._engine is not None, "the table is not open"
        return self._engine.connect().execution_options(schema_translate_map={None: self._schema})

    # Rows

    def staged(self, epoch: Epoch) -> AbstractContextManager[Staged]:
        """The rows where they can be moved from, or nothing if they can go straight into the table."""
        return staged_rows(self, self.room(), epoch, self._spark)

    def clear_staging(self) -> None:
        """Remove what openings of the table left behind."""
        with self.write() as tx:
            self.room().clear(tx, of_all=True)

    def room(self) -> Room:
        """Where this opening stages rows."""
        table = f"{quoted(str(self._schema))}.{quoted(self._table)}"
        info = postgres_engine.conninfo(self._url, _application(self._claim))
        return Room(
            info, self._secret, str(self), str(self._schema), self._table, _digest(table), self._claim
        )

    # Errors

    def explained(self, error: Exception, operation: str, epoch: int | None) -> SinkError:
        """What went wrong, whether it heals by itself, and what to do."""
        return postgres_errors.explained(error, str(self), self._secret, operation, epoch)

    @property
    def _secret(self) -> str | None:
        return str(self._url.password) if self._url.password else None


def _application(claim: str) -> str:
    return f"holdfast:{claim}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
