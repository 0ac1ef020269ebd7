"""The ledger on SQLite, in the work directory: WAL, `synchronous=FULL`, one writer by `BEGIN IMMEDIATE`.

A process that stands still inside a transaction keeps the write lock until it is ended; SQLite has no other way. So
whoever waits for it ends it, if it is one of the flow's (`ledger/sqlite_lock.py`), and says so in the audit trail.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, Transaction
from sqlalchemy.exc import DBAPIError

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger import schema, sqlite_lock
from holdfast.ledger.groups import noted_processes
from holdfast.ledger.ledger import record_event
from holdfast.ledger.location import InFile
from holdfast.ledger.process import Process
from holdfast.ledger.sqlite_lock import LockWait

# By these columns of its table `flow`, a ledger is told from a database of somebody else's.
_SIGNS = {schema.flow.c.format_version.name, schema.flow.c.supervisor.name}

_INSIDE = "stood still inside a transaction of the ledger"


def is_ledger(file: Path) -> bool:
    """Whether a file is the ledger of some flow, whatever it is called."""
    if not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT name FROM pragma_table_info(?)", (schema.flow.name,))
            return {name for (name,) in found} >= _SIGNS
    except sqlite3.Error:
        # It is no database, or cannot be read: whoever is to write to it will say so.
        return False


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
            self._begun(connection),
        ):
            yield connection

    def _begun(self, connection: Connection) -> Transaction:
        """A transaction, as soon as nobody else is in one; who had to be ended for it is in the audit trail."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        wait, ended = LockWait(self._file, driver, self._processes), None
        driver.execute(f"PRAGMA busy_timeout={limits.LEDGER_LOOK_MS}")
        try:
            while True:
                try:
                    transaction = connection.begin()
                    if ended is None:
                        return transaction
                    # By itself: what the transaction was begun for may be refused.
                    record_event(connection, "lock freed", _why(ended))
                    transaction.commit()
                    ended = None
                except DBAPIError as error:
                    if not self.heals(error):
                        raise
                    ended = wait.ended() or ended
        finally:
            driver.execute(f"PRAGMA busy_timeout={limits.LEDGER_BUSY_MS_MAX}")

    def _processes(self) -> list[Process]:
        """Those of the flow: who runs or supervises it, and all that were started for it and have not ended."""
        with self.reading() as tx:
            holders = tx.execute(sa.select(schema.flow.c.holder)).scalars()
            return [*(Process(**one) for one in holders if one), *noted_processes(tx).values()]

    def heals(self, error: DBAPIError) -> bool:
        """Whether another writer was in the way."""
        return "locked" in str(error.orig or error)

    def hint(self, error: DBAPIError) -> str:
        """What is wrong is the disk, or the file."""
        if shutil.disk_usage(self._file.parent).free < limits.LEDGER_FREE_BYTES_MIN:
            return "The disk is full: free some space, then start again. Nothing that was committed is lost."
        return "Check the disk and the file, or bring the ledger back from a backup."

    def free(self, gone: Process) -> None:
        """End it: others would wait until they have seen for long enough that it stands still."""
        if not gone.is_here or sqlite_lock.writer(self._file) != gone.pid:
            return
        gone.end()
        with self.writing() as tx:
            record_event(tx, "lock freed", f"process {gone.pid} {_INSIDE}, and was ended: it counted as gone")

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


def _why(ended: Process) -> str:
    held_s = limits.LEDGER_HOLD_MS_MAX // 1000
    return f"process {ended.pid} {_INSIDE} for {held_s} s, and was ended"


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("holdfast_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
