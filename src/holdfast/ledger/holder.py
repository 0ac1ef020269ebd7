"""Who owns a flow. Taking it raises the generation, so that whoever held it before changes nothing more.

A deposed process is left to find out by itself, with one exception: one that stands still inside a ledger
transaction holds SQLite's write lock, and nobody can be told anything until it is ended. So `take` by force
ends it, if it is on this host, once the lock has been waited for in vain.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger, check_format, record_event


@dataclass(frozen=True)
class Holder:
    """A process, told apart from a later one with the same pid by its start time."""

    host: str
    pid: int
    started: str

    @classmethod
    def myself(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _start_time(os.getpid()) or "")

    def lives(self) -> bool:
        """Whether the process still runs; one on another host counts as running."""
        return self.host != socket.gethostname() or _start_time(self.pid) == self.started


def take(ledger: Ledger, flow_name: str, *, by_force: bool = False) -> int:
    """Become the flow's holder and return the new generation; a living holder is replaced only by force."""
    with ledger.read() as tx:
        _refuse_living(_holder(tx), by_force)
    try:
        return _take(ledger, flow_name, by_force)
    except LedgerError as error:
        if not (by_force and error.heals):
            raise
        _end_holder(ledger, error)
        return _take(ledger, flow_name, by_force)


def _take(ledger: Ledger, flow_name: str, by_force: bool) -> int:
    me = Holder.myself()
    with ledger.unfenced_write() as tx:
        row = tx.execute(sa.select(schema.flow)).one_or_none()
        if row is None:
            values = {"name": flow_name, "format_version": schema.FORMAT_VERSION, "generation": 1}
            tx.execute(sa.insert(schema.flow).values(**values, holder=asdict(me)))
            record_event(tx, "taken", f"process {me.pid} on {me.host} starts the flow", generation=1)
            return 1
        _check_identity(ledger.path, row.name, row.format_version, flow_name)
        holder = _holder(tx)
        _refuse_living(holder, by_force)
        generation = int(row.generation) + 1
        tx.execute(sa.update(schema.flow).values(generation=generation, holder=asdict(me)))
        tx.execute(sa.update(schema.stages).values(generation=generation))
        _close_open_attempts(tx)
        record_event(tx, "taken", _why(me, holder), generation=generation)
        return generation


def _holder(tx: Connection) -> Holder | None:
    found = tx.execute(sa.select(schema.flow.c.holder)).scalar_one_or_none()
    return Holder(**found) if found else None


def _refuse_living(holder: Holder | None, by_force: bool) -> None:
    if holder and holder.lives() and not by_force and holder != Holder.myself():
        raise LedgerError(
            f"process {holder.pid} on {holder.host} is running this flow",
            operation="take",
            hint="Stop it, wait for it with --wait, or replace it with --take-over.",
        )


def _end_holder(ledger: Ledger, error: LedgerError) -> None:
    """A holder that was stopped inside a transaction keeps SQLite's lock for ever: only its end frees it."""
    with ledger.read() as tx:
        holder = _holder(tx)
    if (
        holder is None
        or holder.host != socket.gethostname()
        or not holder.lives()
        or holder.pid == os.getpid()
    ):
        raise error
    os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + limits.LEDGER_BUSY_MS_MAX / 1000
    while holder.lives() and time.monotonic() < deadline:
        time.sleep(0.01)


def release(ledger: Ledger, generation: int) -> None:
    """Say that this process has stopped cleanly; the generation stays."""
    with ledger.write(generation) as tx:
        tx.execute(sa.update(schema.flow).values(holder=None))
        record_event(tx, "released", "clean stop", generation=generation)


def _why(me: Holder, before: Holder | None) -> str:
    if before is None:
        return f"process {me.pid} on {me.host} follows a clean stop"
    state = "takes over from the running" if before.lives() else "replaces the dead"
    return f"process {me.pid} on {me.host} {state} process {before.pid} on {before.host}"


def _close_open_attempts(tx: Connection) -> None:
    """What an older generation has under way can no longer commit, so its files may go."""
    table = schema.attempts
    tx.execute(sa.update(table).where(table.c.status == "open").values(status="closed"))


def _check_identity(path: Path, name: str, version: int, flow_name: str) -> None:
    if name != flow_name:
        raise LedgerError(
            f"{path.parent} belongs to flow {name!r}, not to {flow_name!r}",
            operation="open",
            hint="Give every flow a work directory of its own.",
        )
    check_format(path, version)


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a process, None if there is none (or only its remains)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
