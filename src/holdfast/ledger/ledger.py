"""Opening the ledger, and the fence that every write begins with.

Invariants: the first statement of every write checks the writer's generation, in the same transaction
as the write itself, so an old generation changes nothing. Commits are durable when they return (WAL,
`synchronous=FULL`). Every wait for the lock is bounded.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import schema

FILE_NAME = "ledger.db"


class Ledger:
    """One flow's ledger on SQLite."""

    def __init__(self, work_dir: Path) -> None:
        self.path = work_dir / FILE_NAME
        existed = self.path.exists()
        if not existed and (work_dir / "data").exists():
            raise LedgerError(
                f"{work_dir} holds data but its ledger, {FILE_NAME}, is gone",
                operation="open",
                hint="Bring the ledger back from a backup, or start in an empty work directory.",
            )
        self.engine = _engine(self.path)
        with _translated("open"):
            if existed:
                self._refuse_other_formats()
            schema.metadata.create_all(self.engine)

    def close(self) -> None:
        """Fold the write-ahead log into the database and let go of it."""
        with _translated("close"), self.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        self.engine.dispose()

    def _refuse_other_formats(self) -> None:
        """Before anything is read or made: tables of another format may mean something else."""
        with self.engine.connect() as tx:
            if sa.inspect(tx).has_table(schema.flow.name):
                version = tx.execute(sa.select(schema.flow.c.format_version)).scalar_one_or_none()
                if version is not None:
                    check_format(self.path, version)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the ledger."""
        with _translated("read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, generation: int) -> Iterator[Connection]:
        """A write transaction of a worker whose group has `generation`; refused for an older one."""
        with self.unfenced_write() as tx:
            fenced = tx.execute(
                sa.update(schema.groups)
                .where(schema.groups.c.generation == generation)
                .values(generation=generation)
            )
            if fenced.rowcount != 1:
                raise _fenced(tx, generation)
            yield tx

    def refuse_deposed(self, generation: int) -> None:
        """Raise for a process whose group has gone on without it; what else went wrong with it is a consequence."""
        groups = schema.groups
        with self.read() as tx:
            if tx.execute(sa.select(groups.c.group).where(groups.c.generation == generation)).first() is None:
                raise _fenced(tx, generation)

    @contextmanager
    def unfenced_write(self) -> Iterator[Connection]:
        """A write transaction whose first statement is a fence of its own."""
        with (
            _translated("write"),
            self.engine.connect().execution_options(holdfast_write=True) as connection,
            connection.begin(),
        ):
            yield connection


@contextmanager
def reading(work_dir: Path) -> Iterator[Connection]:
    """One consistent view of a ledger for whoever only looks: nothing is made, and nobody has to wait."""
    path = work_dir / FILE_NAME
    if not path.is_file():
        raise _not_ours(work_dir, f"{FILE_NAME} is not there" if work_dir.is_dir() else "it does not exist")
    engine = _engine(path, writer=False)
    try:
        with _translated("read"), engine.connect() as tx:
            if not sa.inspect(tx).has_table(schema.flow.name):
                raise _not_ours(work_dir, f"{FILE_NAME} is the database of something else")
            version = tx.execute(sa.select(schema.flow.c.format_version)).scalar_one_or_none()
            if version is None:
                raise _not_ours(work_dir, "no flow has run in it yet")
            check_format(path, version)
            yield tx
    finally:
        engine.dispose()


def check_format(path: Path, version: int) -> None:
    """Refuse a ledger that another version of Holdfast wrote in another format."""
    if version != schema.FORMAT_VERSION:
        newer = version > schema.FORMAT_VERSION
        raise LedgerError(
            f"{path.parent} has format version {version}; this Holdfast reads and writes version"
            f" {schema.FORMAT_VERSION}",
            operation="open",
            hint="Use the Holdfast that wrote it, or a newer one."
            if newer
            else "Use the Holdfast that wrote it, or start the flow anew in an empty work directory.",
        )


def record_event(
    tx: Connection,
    kind: str,
    reason: str,
    *,
    stage: str | None = None,
    epoch: int | None = None,
    generation: int | None = None,
) -> None:
    """Add a decision and its reason to the audit trail, which is bounded in number."""
    now_ms = time.time_ns() // 1_000_000
    row = {
        "at_ms": now_ms,
        "kind": kind,
        "stage": stage,
        "epoch": epoch,
        "generation": generation,
        "reason": reason,
    }
    seq = tx.execute(sa.insert(schema.events).values(row)).inserted_primary_key
    newest = int(seq[0]) if seq else 0
    if newest % 1000 == 0:
        tx.execute(sa.delete(schema.events).where(schema.events.c.seq <= newest - limits.EVENTS_MAX))


def _not_ours(work_dir: Path, why: str) -> LedgerError:
    return LedgerError(
        f"{work_dir} is not the work directory of a flow: {why}",
        operation="open",
        hint="Name the directory that the flow runs in with --work-dir; `holdfast run` makes it.",
    )


def _fenced(tx: Connection, generation: int) -> FencedError:
    row = tx.execute(sa.select(schema.flow.c.generation, schema.flow.c.holder)).one()
    holder = row.holder or {}
    return FencedError(
        f"generation {generation} was deposed: generation {row.generation} owns the flow"
        f" (process {holder.get('pid', '?')} on {holder.get('host', '?')})",
        operation="write",
        hint="Nothing of this process is visible any more; it must stop.",
    )


def _engine(path: Path, *, writer: bool = True) -> Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}",
        connect_args={"timeout": limits.LEDGER_BUSY_MS_MAX / 1000, "check_same_thread": False},
    )

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        if writer:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")

    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("holdfast_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begin)
    return engine


@contextmanager
def _translated(operation: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        cause = error.orig or error
        busy = "locked" in str(cause)
        raise LedgerError(
            f"the ledger cannot be used: {cause}",
            operation=f"ledger {operation}",
            heals=busy,
            hint=None if busy else "Check the disk and the file, or bring the ledger back from a backup.",
        ) from error
