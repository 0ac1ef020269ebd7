"""SQLite as the database of a table sink: everything that another database would do differently.

Two copies of SQLite are in this process: Python's own, and the one inside the ADBC driver. Two copies that have
one file open at the same time break each other's locks (POSIX drops a process's locks on a file when any of its
descriptors is closed). So the driver never opens the target: it fills a staging file of ours beside it, closes
it, and only then does Python's SQLite attach that file, read-only, to the connection that writes the target.
The staging file is scratch: it has no journal and is not synced, and is removed when the epoch is through.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from holdfast.core import limits
from holdfast.core.errors import SinkError, StorageError
from holdfast.core.reserved import KEY_INDEX_PREFIX, STAGING
from holdfast.sinks import reading
from holdfast.sinks.database import Column, Database, Epoch, Staged, ingest
from holdfast.sinks.sqlite_types import NAN, Stored, affinity, stored
from holdfast.storage import atomic

_STAGED = "staged"

_HINTS = {
    "disk is full": "The disk is full: free some space, then start again.",
    "readonly": "Give the user that runs the flow the right to write to the file and its directory.",
    "unable to open": "Give the user that runs the flow the right to write to the file and its directory.",
    "not a database": "The file is no SQLite database, or is damaged.",
    "malformed": "The database is damaged: restore it.",
    "constraint failed": "The table has a constraint that the rows break: drop it, or use another table.",
    "no such table": "Something else changed the tables of the database: restore them.",
    "no such column": "Something else changed the table: bring the column back.",
}


class Sqlite(Database):
    """One SQLite file."""

    # SQLite here, SQLite in the driver, and the directory of the staging file.
    failures = (sa.exc.DBAPIError, sqlite3.Error, adbc.Error, OSError, pa.ArrowException)

    def __init__(self, url: str, table: str) -> None:
        self.path = Path(str(sa.make_url(url).database)).resolve()
        self._table = table
        self._claim = ""
        self._engine = _engine(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def target(self) -> str:
        """The table's name, as SQLite compares it."""
        return self.fold(self._table)

    @property
    def place(self) -> object:
        """The file and the table in it."""
        return str(self.path), self.target

    def prepare(self, claim: str) -> None:
        """Make sure that there is a directory for the file."""
        self._claim = claim
        try:
            atomic.make_dirs(self.path.parent)
        except StorageError as error:
            raise self.explained(error, "open", None) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the database."""
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, staging: Path | None = None) -> Iterator[Connection]:
        """One transaction that nobody else writes beside; it sees the staged rows if there are any."""
        with self._engine.connect().execution_options(holdfast_write=True) as connection:
            if staging:
                connection.connection.cursor().execute(
                    f"ATTACH ? AS {STAGING}", (f"{staging.as_uri()}?mode=ro",)
                )
            with connection.begin():
                yield connection

    def opening(self) -> AbstractContextManager[Connection]:
        """A transaction like any other: nobody writes beside it."""
        return self.write()

    def end_sessions(self, tx: Connection, claim: str) -> None:
        """Nobody else can be inside a transaction while this one is."""

    def close(self) -> None:
        """No connection outlives its transaction."""

    @property
    def dialect(self) -> sa.Dialect:
        """How SQLAlchemy writes for this database."""
        return self._engine.dialect

    def named(self, columns: Sequence[str]) -> sa.quoted_name:
        """The table's name; SQLite takes any, of a table or a column."""
        return sa.quoted_name(self._table, quote=True)

    def declared(self, kind: pa.DataType) -> sa.types.TypeEngine[Any] | None:
        """The type to declare for a column of an Arrow type; None if it cannot be stored."""
        how = stored(kind)
        return how.declared if how else None

    def columns(self, tx: Connection) -> dict[str, Column]:
        """The columns of the table by folded name."""
        found = tx.exec_driver_sql(
            "SELECT name, type, \"notnull\" AND dflt_value IS NULL AND NOT (pk AND upper(type) = 'INTEGER') "
            "FROM pragma_table_xinfo(?)",
            (self._table,),
        )
        return {self.fold(name): Column(declared, bool(needed)) for name, declared, needed in found}

    def fold(self, name: str) -> str:
        """A name as the database compares it: SQLite does not tell ASCII's upper from its lower case."""
        return name.encode().lower().decode()

    def keeps(self, declared: str, kind: pa.DataType) -> bool:
        """Whether a column of the declared type gives back what is stored in it."""
        how = stored(kind)
        return how is not None and affinity(declared) in how.kept_by

    def make_key(self, tx: Connection, table: sa.Table, key: Sequence[str]) -> None:
        """Have an index over the key: readers and every upsert look rows up by it.

        It is unique, but SQL takes nulls in it for different. That those are unique too is up to the upsert.
        """
        if not self._has_key(tx, table.name, key):
            name = f"{KEY_INDEX_PREFIX}{_digest(table.name)}"
            columns = [table.c[column] for column in key]
            sa.Index(name, *columns, unique=True).create(tx)

    def _has_key(self, tx: Connection, table: str, key: Sequence[str]) -> bool:
        wanted = {self.fold(name) for name in key}
        primary = tx.exec_driver_sql("SELECT name FROM pragma_table_info(?) WHERE pk", (table,)).scalars()
        if {self.fold(name) for name in primary} == wanted:
            return True
        indexes = tx.exec_driver_sql(
            'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,)
        ).scalars()
        return any(self._indexed(tx, index) == wanted for index in list(indexes))

    def _indexed(self, tx: Connection, index: str) -> set[str]:
        names = tx.exec_driver_sql("SELECT name FROM pragma_index_info(?)", (index,)).scalars()
        return {self.fold(name or "") for name in names}

    # Staging

    @contextmanager
    def staged(self, epoch: Epoch) -> Iterator[Staged]:
        """The rows in a file of their own, without a lock on the database."""
        if not epoch.segments:
            yield _StagedFile(self, epoch, None)
            return
        path = self._hidden / f"{_digest(self.target)}-{self._claim}.db"
        try:
            self._stage(path, epoch)
            yield _StagedFile(self, epoch, path)
        finally:
            path.unlink(missing_ok=True)

    def clear_staging(self) -> None:
        """Remove what openings of the table left behind."""
        if self._hidden.is_dir():
            for leftover in self._hidden.glob(f"{_digest(self.target)}-*"):
                leftover.unlink(missing_ok=True)

    def _stage(self, path: Path, epoch: Epoch) -> None:
        """Bulk-load rows into a staging file; with a key, of rows with one key only the last stays."""
        columns = _staging_columns(epoch.schema)
        # The database may be for fewer eyes than its directory.
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        with adbc.connect(str(path), autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = OFF")
            cursor.execute("PRAGMA synchronous = OFF")
            _load(cursor, columns, reading.batches(epoch.segments, epoch.schema))
            for column in columns:
                if column.how.may_be_nan:
                    cursor.execute(f"UPDATE {_STAGED} SET {column.name} = '{NAN}' WHERE {column.nan}")
            if epoch.key:
                names = ", ".join(columns[epoch.schema.get_field_index(name)].name for name in epoch.key)
                cursor.execute(
                    f"DELETE FROM {_STAGED} WHERE rowid NOT IN "
                    f"(SELECT max(rowid) FROM {_STAGED} GROUP BY {names})"
                )

    @property
    def _hidden(self) -> Path:
        return self.path.with_name(f".{self.path.name}.holdfast")

    # Errors

    def explained(self, error: Exception, operation: str, epoch: int | None) -> SinkError:
        """What went wrong, whether it heals by itself, and what to do."""
        reason = (
            error.message if isinstance(error, StorageError) else str(getattr(error, "orig", None) or error)
        )
        locked = "locked" in reason or "busy" in reason
        hint = atomic.hint_for(error) or next((_HINTS[part] for part in _HINTS if part in reason), None)
        if locked:
            hint = (
                f"Another process kept it locked for more than {limits.SINK_BUSY_MS_MAX / 1000:g} s; one of this flow "
                "that was stopped while it wrote must be ended. Nothing was lost: what is not published is offered "
                "again in the next run."
            )
        return SinkError(
            f"{self.path} cannot be written: {reason}",
            operation=operation,
            epoch=epoch,
            heals=locked,
            hint=hint,
        )


@dataclass(frozen=True)
class _StagedFile(Staged):
    """Rows in a staging file."""

    database: Sqlite
    epoch: Epoch
    path: Path | None

    def transaction(self) -> AbstractContextManager[Connection]:
        """The one that sees the file."""
        return self.database.write(self.path)

    def move(self, tx: Connection) -> None:
        """With a key, change the rows that are there and add the others."""
        for statement in self.statements():
            tx.execute(statement)

    def statements(self) -> list[sa.Executable]:
        """Rows are matched by `IS`, for which a null equals a null, and which uses the index over the key."""
        table, key = self.epoch.table, self.epoch.key
        columns = _staging_columns(self.epoch.schema)
        loaded = sa.table(_STAGED, *(sa.column(column.name) for column in columns), schema=STAGING)
        staged = loaded.alias(f"{_STAGED} {table.name}")  # never what the target is called
        pairs = list(zip(table.c, staged.c, strict=True))
        rows = sa.select(*staged.c)
        if key is None:
            return [sa.insert(table).from_select(list(table.c), rows)]
        same = sa.and_(*(mine.is_not_distinct_from(new) for mine, new in pairs if mine.name in key))
        changed = {mine: new for mine, new in pairs if mine.name not in key}
        missing = rows.where(~sa.exists().where(same).select_from(table).correlate(staged))
        add = sa.insert(table).from_select(list(table.c), missing)
        return [sa.update(table).values(changed).where(same), add] if changed else [add]


class _Column:
    """A column of the staging table; where it may hold NaN, which ADBC binds as null, another one says where."""

    def __init__(self, number: int, how: Stored | None) -> None:
        assert how is not None, "checked when the flow was planned"
        self.how = how
        self.name = f"c{number}"
        self.nan = f"nan{number}"

    def arrays(self, values: pa.Array) -> list[pa.Array]:
        return [self.how.convert(values), *([pc.is_nan(values)] if self.how.may_be_nan else [])]

    @property
    def names(self) -> list[str]:
        return [self.name, *([self.nan] if self.how.may_be_nan else [])]


def _staging_columns(schema: pa.Schema) -> list[_Column]:
    return [_Column(number, stored(field.type)) for number, field in enumerate(schema)]


def _load(cursor: adbc.Cursor, columns: Sequence[_Column], batches: Iterator[pa.RecordBatch]) -> None:
    names = [name for column in columns for name in column.names]
    converted = (
        pa.RecordBatch.from_arrays(
            [array for c, values in zip(columns, batch.columns, strict=True) for array in c.arrays(values)],
            names,
        )
        for batch in batches
    )
    first = next(converted)
    ingest(cursor, _STAGED, first.schema, chain([first], converted), mode="create")


def _engine(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        # `uri` only lets a staging file be attached read-only: a path that starts with a slash stays a path.
        connection = sqlite3.connect(
            path,
            timeout=limits.SINK_BUSY_MS_MAX / 1000,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{limits.SINK_CACHE_BYTES_MAX // 1024}")
        return connection

    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("holdfast_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    # No pool: between two epochs nothing of ours holds the file, and no attached file is left over.
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    sa.event.listen(engine, "begin", begin)
    return engine


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
