"""The return to a snapshot that somebody wants, while nothing runs: what it would undo, and doing it.

Invariants: all of it is one transaction, of a process that has taken the flow as one that runs it would; nothing is
changed where somebody outside the region has had more than the snapshot covers, unless that is a sink whose target is
going to be another; snapshots that are newer are gone with the epochs that they covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.ledger import groups, holder, inputs, schema, sink_starts, snapshots
from holdfast.ledger.asked_snapshots import find, kept_numbers
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.returning import Ahead, consumers_outside, return_to, those_ahead
from holdfast.ledger.snapshots import Snapshot

_SINK = "sink:"


@dataclass(frozen=True)
class Again:
    """What a stage reads again of one input."""

    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class Undoing:
    """What a return means for one stage."""

    epoch: int  # the last that stays
    head: int  # the last before the return
    again: dict[str, Again]  # by input

    @property
    def undone(self) -> int:
        """How many epochs that is."""
        return self.head - self.epoch


@dataclass(frozen=True)
class Restoration:
    """What a return to a snapshot does, or would."""

    flow: str
    snapshot: Snapshot
    stages: dict[str, Undoing]
    new_targets: list[Ahead]  # sinks that need another target before the flow runs again
    gone: list[int]  # snapshots that are newer


def preview(work_dir: Path, which: str, *, new_targets: bool) -> Restoration:
    """What `restore` would do now; refused where it would be."""
    with reading(work_dir) as tx:
        _refuse_running(tx)
        return _weighed(tx, which, new_targets)


def restore(work_dir: Path, which: str, *, new_targets: bool) -> Restoration:
    """Bring the region back to a snapshot; with `new_targets`, also the cursors of sinks that are ahead of it."""
    preview(work_dir, which, new_targets=new_targets)
    ledger = Ledger(work_dir)
    try:
        with ledger.read() as tx:
            name = str(tx.execute(sa.select(schema.flow.c.name)).scalar_one())
        generation = holder.take(ledger, name)
        try:
            with ledger.write(generation) as tx:
                found = _weighed(tx, which, new_targets)
                _apply(tx, found, new_targets)
        finally:
            holder.release(ledger, generation)
    finally:
        ledger.close()
    return found


def _refuse_running(tx: Connection) -> None:
    process = holder.running(tx)
    if process is not None:
        raise LedgerError(
            f"process {process.pid} on {process.host} is running this flow",
            operation="snapshot restore",
            hint="Stop it first; epochs that are under way would be undone.",
        )


def _weighed(tx: Connection, which: str, new_targets: bool) -> Restoration:
    one = find(tx, which)
    found = snapshots.all_snapshots(tx)
    _refuse_unkept(one, one.number in kept_numbers(found), snapshots.region(tx))
    ahead = those_ahead(tx, one)
    sinks = [who for who in ahead if who.consumer.startswith(_SINK)]
    _refuse_ahead(one, [who for who in ahead if who not in sinks] if new_targets else ahead)
    return Restoration(
        str(tx.execute(sa.select(schema.flow.c.name)).scalar_one()),
        one,
        {stage: _undoing(tx, one, stage) for stage in one.parts},
        sinks,
        [other.number for other in found if other.number > one.number],
    )


def _refuse_unkept(one: Snapshot, is_kept: bool, region: set[str]) -> None:
    if is_kept and one.covers(sorted(region)):
        return
    why = one.reason or (
        "what it needs is no longer kept" if one.is_complete else f"it is {one.status}, not complete"
    )
    raise LedgerError(
        f"snapshot {one.number} cannot be returned to: {why}",
        operation="snapshot restore",
        hint="`holdfast snapshot list` says which are kept: the newest, and those that were asked for.",
    )


def _refuse_ahead(one: Snapshot, ahead: Sequence[Ahead]) -> None:
    if not ahead:
        return
    only_sinks = all(who.consumer.startswith(_SINK) for who in ahead)
    raise LedgerError(
        f"snapshot {one.number} cannot be returned to: {'; '.join(map(str, ahead))}",
        operation="snapshot restore",
        hint="What has left the region cannot be undone where it went. Return to a newer snapshot"
        + (
            ", or set these sinks back too with --new-targets, and give them other targets before the flow runs again."
            if only_sinks
            else "; stages and readers outside the region that have had more cannot be set back."
        ),
    )


def _undoing(tx: Connection, one: Snapshot, stage: str) -> Undoing:
    part, again = one.parts[stage], {}
    for name, start in sorted(part.positions.items()):
        stop = inputs.processed(tx, f"stage:{stage}", name)
        if stop > start:
            again[name] = Again(start, stop, inputs.rows_between(tx, name, start, stop))
    return Undoing(part.epoch, stage_row(tx, stage).head, again)


def _apply(tx: Connection, found: Restoration, new_targets: bool) -> None:
    one = found.snapshot
    if new_targets:
        _set_sinks_back(tx, one)
    everything = [stage for row in groups.all_groups(tx).values() for stage in row.stages]
    return_to(tx, one, everything, "somebody wanted it")
    for number in found.gone:
        snapshots.delete(tx, number)


def _set_sinks_back(tx: Connection, one: Snapshot) -> None:
    """Also a sink that stands just at the snapshot: its target may hold an epoch of which the ledger never heard."""
    cursors = schema.cursors
    for consumer, name, stage, processed in consumers_outside(tx, one):
        start = one.parts[stage].epoch + 1
        if consumer.startswith(_SINK) and processed >= start:
            mine = (cursors.c.consumer == consumer, cursors.c.input == name)
            tx.execute(sa.update(cursors).where(*mine).values(processed=start, needed=start))
            sink_starts.set_start(tx, consumer.removeprefix(_SINK), start)
