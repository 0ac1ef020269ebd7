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

    def __init__(self, work_dir: Path, *, must_exist: bool = False) -> None:
        self.path = work_dir / FILE_NAME
        existed = self.path.exists()
        if must_exist and not existed:
            raise LedgerError(
                f"{work_dir} holds no ledger", operation="open", hint="Is it a Holdfast work directory?"
            )
        if not existed and (work_dir / "data").exists():
            raise LedgerError(
                f"{work_dir} holds data but its ledger, {FILE_NAME}, is gone",
                operation="open",
                hint="Bring the ledger back from a backup, or start in an empty work directory.",
            )
        self.engine = _engine(self.path)
        with _translated("open"):
            schema.metadata.create_all(self.engine)

    def close(self) -> None:
        """Fold the write-ahead log into the database and let go of it."""
        with _translated("close"), self.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the ledger."""
        with _translated("read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, generation: int) -> Iterator[Connection]:
        """A write transaction of the process that holds `generation`; refused for an older one."""
        with self.unfenced_write() as tx:
            fenced = tx.execute(
                sa.update(schema.flow)
                .where(schema.flow.c.generation == generation)
                .values(generation=schema.flow.c.generation)
            )
            if fenced.rowcount != 1:
                raise _fenced(tx, generation)
            yield tx

    def refuse_deposed(self, generation: int) -> None:
        """Raise for a process that no longer holds the flow; what else went wrong with it is a consequence."""
        with self.read() as tx:
            if tx.execute(sa.select(schema.flow.c.generation)).scalar_one() != generation:
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


def _fenced(tx: Connection, generation: int) -> FencedError:
    row = tx.execute(sa.select(schema.flow.c.generation, schema.flow.c.holder)).one()
    holder = row.holder or {}
    return FencedError(
        f"generation {generation} was deposed: generation {row.generation} owns the flow"
        f" (process {holder.get('pid', '?')} on {holder.get('host', '?')})",
        operation="write",
        hint="Nothing of this process is visible any more; it must stop.",
    )


def _engine(path: Path) -> Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}",
        connect_args={"timeout": limits.LEDGER_BUSY_MS_MAX / 1000, "check_same_thread": False},
    )

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
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
