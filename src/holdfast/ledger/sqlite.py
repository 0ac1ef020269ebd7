"""The ledger on SQLite, in the work directory: WAL, `synchronous=FULL`, one writer by `BEGIN IMMEDIATE`.

A process that stands still inside a transaction keeps the write lock until it is ended; SQLite has no other way.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger import schema
from holdfast.ledger.location import InFile
from holdfast.ledger.process import Process


class Sqlite:
    """A ledger in a file."""

    def __init__(self, location: InFile, *, writer: bool) -> None:
        self._file = location.file
        self._existed = self._file.exists()
        self._engine = sa.create_engine(
            URL.create(
                "sqlite", database=str(self._file)
            ),  # a path may hold what means something in the text of a URL
            connect_args={"timeout": limits.LEDGER_BUSY_MS_MAX / 1000, "check_same_thread": False},
        )

        def connected(connection: sqlite3.Connection, _: object) -> None:
            connection.isolation_level = None
            if writer:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")

        sa.event.listen(self._engine, "connect", connected)
        sa.event.listen(self._engine, "begin", _begin)

    @property
    def engine(self) -> Engine:
        """What connections come from."""
        return self._engine

    @property
    def place(self) -> str:
        """The work directory."""
        return str(self._file.parent)

    @property
    def environment(self) -> Mapping[str, str]:
        """A file is found by its name."""
        return {}

    def exists(self) -> bool:
        """Whether the file was there when it was opened."""
        return self._existed

    def make(self) -> None:
        """Make tables that are not there yet."""
        schema.metadata.create_all(self._engine)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer is beside."""
        with (
            self._engine.connect().execution_options(holdfast_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    def heals(self, error: DBAPIError) -> bool:
        """Whether another writer was in the way."""
        return "locked" in str(error.orig or error)

    def hint(self, error: DBAPIError) -> str:
        """What is wrong is the file."""
        return "Check the disk and the file, or bring the ledger back from a backup."

    def free(self, holders: Sequence[Process]) -> bool:
        """End the flow's processes on this host: one that was stopped inside a transaction keeps the lock for ever."""
        here = [one for one in holders if one.is_here and one.lives() and one != Process.myself()]
        for one in here:
            one.end()
        return bool(here)

    def watch(self) -> SqliteWatch:
        """Hear of commits from now on."""
        return SqliteWatch(str(self._file))

    def close(self) -> None:
        """Fold the write-ahead log into the database and let go of it."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        self._engine.dispose()

    def drop(self) -> None:
        """Remove the file last: as long as it is there, the others belong to it."""
        self.close()
        for suffix in ("-wal", "-shm", ""):
            self._file.with_name(f"{self._file.name}{suffix}").unlink(missing_ok=True)


class SqliteWatch:
    """Looks at the number that SQLite changes with every commit of another connection: no table is read."""

    def __init__(self, file: str) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._seen = self._version()

    def wait(self, seconds: float) -> bool:
        """Wait so long for a commit since the last call; whether there was one."""
        deadline = time.monotonic() + seconds
        try:
            return self._heard(deadline)
        except sqlite3.Error as error:
            raise LedgerError("the ledger cannot be heard", operation="ledger watch", heals=True) from error

    def _heard(self, deadline: float) -> bool:
        while (version := self._version()) == self._seen:
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            time.sleep(min(rest, limits.NEWS_LOOK_MS / 1000))
        self._seen = version
        return True

    def close(self) -> None:
        """Hear no more."""
        self._connection.close()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("holdfast_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
