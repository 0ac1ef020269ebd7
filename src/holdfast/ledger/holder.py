"""Who decides in a flow: a supervisor, or a process that runs the flow by itself.

Taking the flow raises the generation, so that whoever held it before changes nothing more. A supervisor lets the
workers that it finds go on, and decides about them; a process that runs the flow by itself deposes them all.

A deposed process is left to find out by itself. Only one that stands still inside a ledger transaction is ended, or its
connection, by whoever waits for the lock (`ledger/databases.py`).
"""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.flow.placement import MAIN
from holdfast.ledger import groups, schema
from holdfast.ledger.ledger import Ledger, check_format, record_event
from holdfast.ledger.process import Process


def take(ledger: Ledger, flow_name: str, *, by_force: bool = False) -> int:
    """Run the flow in this process alone; returns the new generation. The living are replaced only by force."""
    with ledger.read() as tx:
        _refuse_living(_living(tx), by_force)
    with ledger.unfenced_write() as tx:
        generation = _claim(tx, ledger.place, flow_name, by_force, _living(tx))
        groups.merge_into_one(tx, MAIN, generation, worker_name(Process.myself(), generation))
        return generation


def supervise(ledger: Ledger, flow_name: str, *, by_force: bool = False) -> int:
    """Decide about the flow's workers from now on; returns the generation by which one does so."""
    with ledger.read() as tx:
        _refuse_living(_holder(tx), by_force)
    with ledger.unfenced_write() as tx:
        return _claim(tx, ledger.place, flow_name, by_force, _holder(tx))


def supervisor(ledger: Ledger) -> int:
    """The generation of the process that decides about the flow's workers, or runs it alone."""
    with ledger.read() as tx:
        return int(tx.execute(sa.select(schema.flow.c.supervisor)).scalar_one())


def running(tx: Connection) -> Process | None:
    """The process that runs the flow now, or a worker that has outlived it; None if there is none."""
    found = _living(tx)
    return found if found and found.lives() else None


def release(ledger: Ledger, generation: int) -> None:
    """Say that a process that ran the flow alone has stopped cleanly; the generation stays."""
    with ledger.write(generation) as tx:
        tx.execute(sa.update(schema.flow).values(holder=None))
        groups.vacate(tx, generation)
        record_event(tx, "released", "clean stop", generation=generation)


def resign(ledger: Ledger, supervisor: int) -> None:
    """Say that a supervisor has stopped, and all its workers with it."""
    with ledger.unfenced_write() as tx:
        groups.fence_supervisor(tx, supervisor)
        tx.execute(sa.update(schema.flow).values(holder=None))
        tx.execute(sa.delete(schema.workers))
        record_event(tx, "released", "the supervisor has stopped", generation=supervisor)


def worker_name(process: Process, generation: int) -> str:
    """What a process that runs a flow by itself is called among the workers: another name each time it takes it."""
    return f"process-{process.pid}-{generation}"


def _claim(tx: Connection, place: str, flow_name: str, by_force: bool, before: Process | None) -> int:
    """Become the holder, with a new generation."""
    me = Process.myself()
    row = tx.execute(sa.select(schema.flow)).one_or_none()
    if row is None:
        values = {"name": flow_name, "format_version": schema.FORMAT_VERSION, "generation": 1}
        tx.execute(sa.insert(schema.flow).values(**values, supervisor=1, holder=asdict(me)))
        record_event(tx, "taken", f"process {me.pid} on {me.host} starts the flow", generation=1)
        return 1
    _check_identity(place, row.name, row.format_version, flow_name)
    _refuse_living(before, by_force)
    generation = int(row.generation) + 1
    tx.execute(sa.update(schema.flow).values(generation=generation, supervisor=generation, holder=asdict(me)))
    record_event(tx, "taken", _why(me, before), generation=generation)
    return generation


def _holder(tx: Connection) -> Process | None:
    found = tx.execute(sa.select(schema.flow.c.holder)).scalar_one_or_none()
    return Process(**found) if found else None


def _living(tx: Connection) -> Process | None:
    """The holder, or a worker that has outlived it."""
    holder = _holder(tx)
    return next((one for one in (holder, *groups.processes(tx)) if one and one.lives()), holder)


def _refuse_living(holder: Process | None, by_force: bool) -> None:
    if holder and holder.lives() and not by_force and holder != Process.myself():
        raise LedgerError(
            f"process {holder.pid} on {holder.host} is running this flow",
            operation="take",
            hint="Stop it, wait for it with --wait, or replace it with --take-over.",
        )


def _why(me: Process, before: Process | None) -> str:
    if before is None:
        return f"process {me.pid} on {me.host} follows a clean stop"
    state = "takes over from the running" if before.lives() else "replaces the dead"
    return f"process {me.pid} on {me.host} {state} process {before.pid} on {before.host}"


def _check_identity(place: str, name: str, version: int, flow_name: str) -> None:
    if name != flow_name:
        raise LedgerError(
            f"{place} belongs to flow {name!r}, not to {flow_name!r}",
            operation="open",
            hint="Give every flow a work directory of its own.",
        )
    check_format(place, version)
