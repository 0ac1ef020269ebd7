"""Opening the ledger, and the fence that whatever changes a flow begins with.

Invariants: the first statement of every write that changes what a flow has or does checks the writer's generation, or that
of the supervisor, in the same transaction as the write itself, so an old generation changes nothing. There is one writer at
a time, commits are durable when they return, and every wait for the lock is bounded: `ledger/databases.py` says which
databases do that.

Some writes are anybody's, and have no fence: taking the flow, which raises the generation; what a process says about itself,
and that one has ended; pins, and the cursors of readers outside; wishes, such as a snapshot or a fail-over; the schema of a
source that is inferred first; that a lock was freed. A test lists them with their reasons. That a file is lost is so
whoever finds out, and is said under the generation that the stage has then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import location as locations
from holdfast.ledger import schema
from holdfast.ledger.databases import Database, Watch, database_of, translated
from holdfast.ledger.location import FILE_NAME, RESET_NAME, InFile, Location
from holdfast.ledger.process import Process


class Ledger:
    """One flow's ledger."""

    def __init__(self, work_dir: Path, location: Location | None = None, *, resetting: bool = False) -> None:
        _refuse_half_reset(work_dir, resetting)
        location = location or locations.found(work_dir)
        self._database: Database = database_of(location)
        self._listeners: list[Callable[[], None]] = []
        with translated(self._database, "open"):
            existed = self._database.exists()
            if not existed and (work_dir / "data").exists():
                raise LedgerError(
                    f"{work_dir} holds data but its ledger, {_name_of(location)}, is gone",
                    operation="open",
                    hint="Bring the ledger back from a backup, or start in an empty work directory.",
                )
            if existed:
                self._refuse_other_formats()
            self._database.make()

    @property
    def engine(self) -> Engine:
        """What connections come from."""
        return self._database.engine

    @property
    def place(self) -> str:
        """How errors name the ledger."""
        return self._database.place

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process that is to open the same ledger must find in its environment."""
        return self._database.environment

    def close(self) -> None:
        """Let go of it."""
        with translated(self._database, "close"):
            self._database.close()

    def drop(self) -> None:
        """Remove it, with all that it knows."""
        with translated(self._database, "drop"):
            self._database.drop()

    def free(self, gone: Process) -> None:
        """Let nobody wait for a process that counts as gone, if it stands inside a transaction."""
        with translated(self._database, "free"):
            self._database.free(gone)

    def watch(self) -> Watch:
        """Hear of commits from now on, whoever makes them."""
        return self._database.watch()

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Have a function called after every write of this process, before the writer goes on."""
        self._listeners.append(listener)

    def _refuse_other_formats(self) -> None:
        """Before anything is read or made: tables of another format may mean something else."""
        with self._database.reading() as tx:
            if sa.inspect(tx).has_table(schema.flow.name):
                version = tx.execute(sa.select(schema.flow.c.format_version)).scalar_one_or_none()
                if version is not None:
                    check_format(self.place, version)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the ledger."""
        with translated(self._database, "read"), self._database.reading() as connection:
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
        """A write transaction whose first statement is a fence of its own, unless it is a write that needs none."""
        with translated(self._database, "write"), self._database.writing() as connection:
            yield connection
        for listener in self._listeners:
            listener()


@contextmanager
def reading(work_dir: Path) -> Iterator[Connection]:
    """One consistent view of a ledger for whoever only looks: nothing is made, and nobody has to wait."""
    location = locations.found(work_dir)
    if isinstance(location, InFile) and not location.file.is_file():
        raise _not_ours(work_dir, f"{FILE_NAME} is not there" if work_dir.is_dir() else "it does not exist")
    database = database_of(location, writer=False)
    try:
        with translated(database, "read"), database.reading() as tx:
            if not sa.inspect(tx).has_table(schema.flow.name):
                raise _not_ours(work_dir, f"{_name_of(location)} is the database of something else")
            version = tx.execute(sa.select(schema.flow.c.format_version)).scalar_one_or_none()
            if version is None:
                raise _not_ours(work_dir, "no flow has run in it yet")
            check_format(database.place, version)
            yield tx
    finally:
        database.engine.dispose()


def check_format(place: str, version: int) -> None:
    """Refuse a ledger that another version of Holdfast wrote in another format."""
    if version != schema.FORMAT_VERSION:
        newer = version > schema.FORMAT_VERSION
        raise LedgerError(
            f"{place} has format version {version}; this Holdfast reads and writes version"
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


def _refuse_half_reset(work_dir: Path, resetting: bool) -> None:
    """Some of what the ledger names may be gone already; a run would take that for a loss."""
    if not resetting and (work_dir / RESET_NAME).exists():
        raise LedgerError(
            f"a reset of {work_dir} was begun and has not ended",
            operation="open",
            hint="Run `holdfast reset` again: it goes on where it stopped.",
        )


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


def _name_of(location: Location) -> str:
    """What the user knows the ledger's database by."""
    return FILE_NAME if isinstance(location, InFile) else f"schema {location.schema} of {location.url}"
