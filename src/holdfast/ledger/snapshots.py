"""Snapshots in the ledger: begun, added to stage by stage, committed or aborted, and returned to.

Invariants: a stage adds its part in a transaction that is fenced on its head, so that the part is one moment of it; a
snapshot is committed by one write, of whoever leads the group that coordinates; only a committed one is returned to;
the return moves all stages of the region, their cursors and their generations in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow, fence_stage, open_plan, stage_row
from holdfast.ledger.ledger import Ledger, record_event
from holdfast.protocols.snapshots import (
    ABORTED,
    ASKED,
    COMMITTED,
    DONE,
    PREPARING,
    Part,
    Region,
    Standing,
    kept,
)

COMPLETE = (COMMITTED, DONE)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot, with what stages have added to it."""

    number: int
    status: str
    mode: str
    asked: bool
    name: str | None
    to_blame: bool
    reason: str | None
    begun_ms: int | None
    committed_ms: int | None
    ended_ms: int | None
    parts: Mapping[str, Part]
    bytes: Mapping[str, int]  # by stage, of the files that it added

    @property
    def is_complete(self) -> bool:
        """Whether it can be returned to."""
        return self.status in COMPLETE

    def covers(self, stages: Sequence[str]) -> bool:
        """Whether it has a part of each of these."""
        return all(stage in self.parts for stage in stages)


def all_snapshots(tx: Connection, *statuses: str) -> list[Snapshot]:
    """Snapshots, oldest first; only those with one of the statuses, if any is named."""
    table, parts = schema.snapshots, schema.snapshot_parts
    query = sa.select(table).order_by(table.c.number)
    rows = tx.execute(query.where(table.c.status.in_(statuses)) if statuses else query).all()
    by_number: dict[int, list[sa.Row[tuple[object, ...]]]] = {}
    for part in tx.execute(sa.select(parts).where(parts.c.number.in_([row.number for row in rows]))):
        by_number.setdefault(part.number, []).append(part)
    return [_snapshot(row, by_number.get(row.number, [])) for row in rows]


def are_known(tx: Connection) -> bool:
    """Whether a ledger that is only looked at has the tables: an older Holdfast of the same format made none."""
    return sa.inspect(tx).has_table(schema.regions.name)


def region(tx: Connection) -> set[str]:
    """The stages that snapshots capture as one."""
    return set(tx.execute(sa.select(schema.regions.c.stage)).scalars())


def last_complete(tx: Connection, stages: Sequence[str]) -> Snapshot | None:
    """The newest snapshot that has all of these stages and can be returned to."""
    found = [one for one in all_snapshots(tx, *COMPLETE) if one.covers(stages)]
    return found[-1] if found else None


def released(tx: Connection, row: StageRow) -> int:
    """The last epoch of a stage that may leave it: the last committed, in a region the last that a snapshot covers."""
    table, parts = schema.snapshots, schema.snapshot_parts
    inside = sa.select(schema.regions.c.stage).where(schema.regions.c.stage == row.stage)
    if tx.execute(inside).first() is None:
        return row.head
    found = tx.execute(
        sa.select(sa.func.max(parts.c.epoch))
        .join(table, table.c.number == parts.c.number)
        .where(parts.c.stage == row.stage, table.c.status.in_(COMPLETE))
    ).scalar()
    return -1 if found is None else int(found)


def restorable(tx: Connection, stage: str) -> list[Part]:
    """The parts of a stage in all snapshots that can be returned to, oldest first: files stay for each of them."""
    complete = [one for one in all_snapshots(tx, *COMPLETE) if stage in one.parts]
    numbers = kept((one.number, one.asked) for one in complete)
    return [one.parts[stage] for one in complete if one.number in numbers]


def newest_part(tx: Connection, stage: str) -> Part | None:
    """What a stage has added last, to a snapshot that was not aborted."""
    table, parts = schema.snapshots, schema.snapshot_parts
    found = tx.execute(
        sa.select(parts.c.epoch, parts.c.positions)
        .join(table, table.c.number == parts.c.number)
        .where(parts.c.stage == stage, table.c.status.in_((PREPARING, *COMPLETE)))
        .order_by(parts.c.number.desc())
        .limit(1)
    ).one_or_none()
    return None if found is None else Part(found.epoch, found.positions)


def standing(tx: Connection, row: StageRow) -> Standing:
    """Where a stage stands."""
    cursors = schema.cursors
    mine = sa.select(cursors.c.input, cursors.c.processed).where(cursors.c.consumer == f"stage:{row.stage}")
    positions = {name: int(at) for name, at in tx.execute(mine)}
    return Standing(row.head, positions, open_plan(tx, row) is not None)


def set_region(tx: Connection, own: Sequence[str], inside: Sequence[str]) -> None:
    """Say which of a group's stages snapshots capture.

    Where that changes, older snapshots are worth nothing: nobody kept what they need meanwhile.
    """
    table = schema.regions
    before = region(tx) & set(own)
    if before == set(inside):
        return
    for snapshot in all_snapshots(tx) if before else ():
        delete(tx, snapshot.number)
    tx.execute(sa.delete(table).where(table.c.stage.in_(list(own))))
    for stage in inside:
        tx.execute(sa.insert(table).values(stage=stage))


def ask(tx: Connection, name: str | None) -> int:
    """Want a snapshot, for a person; its number."""
    return _insert(tx, ASKED, mode="", asked=1, name=name)


def begin(ledger: Ledger, generation: int, mode: str) -> int:
    """Set the markers on their way, for the oldest that was asked for, else for one of our own; its number.

    Whoever asks has a number at once. So nothing may begin before it that has a later one: stages take their parts in
    the order of the numbers, and the highest that is complete is the one to return to.
    """
    table = schema.snapshots
    with ledger.write(generation) as tx:
        asked = tx.execute(sa.select(sa.func.min(table.c.number)).where(table.c.status == ASKED)).scalar()
        if asked is None:
            return _insert(tx, PREPARING, mode=mode, asked=0, name=None)
        values = {"status": PREPARING, "mode": mode, "begun_ms": _now_ms()}
        tx.execute(sa.update(table).where(table.c.number == asked).values(**values))
        return int(asked)


def add_part(ledger: Ledger, row: StageRow, number: int, part: Part) -> None:
    """Add what a stage has at its head; refused if it has gone on since, or is another's.

    A snapshot that is over meanwhile gets nothing more: its number may be given again, and a part must be of its time.
    """
    table = schema.snapshot_parts
    with ledger.unfenced_write() as tx:
        fence_stage(tx, row, head=row.head)
        known = sa.select(table.c.number).where(table.c.number == number, table.c.stage == row.stage)
        if not _is_under_way(tx, number) or tx.execute(known).first() is not None:
            return
        tx.execute(
            sa.insert(table).values(
                number=number,
                stage=row.stage,
                epoch=part.epoch,
                positions=dict(part.positions),
                taken_ms=_now_ms(),
                bytes=0,
            )
        )


def commit(ledger: Ledger, generation: int, snapshot: Snapshot) -> None:
    """Decide that a snapshot is complete: from here on it is returned to, and sinks may have what it covers.

    One that was dropped meanwhile stays so. The generation alone does not tell: a worker that stays when the region
    returns has a new one at once, in all its threads, and one of them may have looked before.
    """
    table, parts = schema.snapshots, schema.snapshot_parts
    with ledger.write(generation) as tx:
        if not _is_under_way(tx, snapshot.number):
            return
        before = last_complete(tx, list(snapshot.parts))
        for stage, part in snapshot.parts.items():
            since = before.parts[stage].epoch if before else -1
            size = _bytes_between(tx, stage_row(tx, stage), since, part.epoch)
            mine = (parts.c.number == snapshot.number, parts.c.stage == stage)
            tx.execute(sa.update(parts).where(*mine).values(bytes=size))
        tx.execute(
            sa.update(table)
            .where(table.c.number == snapshot.number)
            .values(status=COMMITTED, committed_ms=_now_ms())
        )
        _forget_old(tx)


def mark_done(ledger: Ledger, generation: int, numbers: Sequence[int]) -> None:
    """Everybody outside has what these snapshots cover."""
    table = schema.snapshots
    with ledger.write(generation) as tx:
        tx.execute(
            sa.update(table).where(table.c.number.in_(list(numbers))).values(status=DONE, ended_ms=_now_ms())
        )


def abort(ledger: Ledger, generation: int, number: int, reason: str, *, to_blame: bool) -> None:
    """Drop a snapshot that cannot be completed."""
    with ledger.write(generation) as tx:
        _abort(tx, [number], reason, to_blame)
        record_event(tx, "snapshot aborted", f"snapshot {number}: {reason}", generation=generation)


def delete(tx: Connection, number: int) -> None:
    """Forget a snapshot: what only it needed may go."""
    for table in (schema.snapshots, schema.snapshot_parts):
        tx.execute(sa.delete(table).where(table.c.number == number))


def abort_open(tx: Connection, reason: str) -> None:
    """Drop all snapshots that are on their way."""
    _abort(tx, [one.number for one in all_snapshots(tx, PREPARING)], reason, to_blame=False)


def unfinished(tx: Connection, region: Region) -> list[Snapshot]:
    """Snapshots whose markers are on their way in this region, oldest first."""
    return all_snapshots(tx, PREPARING) if region else []


def _is_under_way(tx: Connection, number: int) -> bool:
    table = schema.snapshots
    found = sa.select(table.c.number).where(table.c.number == number, table.c.status == PREPARING)
    return tx.execute(found).first() is not None


def _abort(tx: Connection, numbers: Sequence[int], reason: str, to_blame: bool) -> None:
    table = schema.snapshots
    values = {"status": ABORTED, "reason": reason, "to_blame": int(to_blame), "ended_ms": _now_ms()}
    tx.execute(sa.update(table).where(table.c.number.in_(list(numbers))).values(**values))


def _insert(tx: Connection, status: str, *, mode: str, asked: int, name: str | None) -> int:
    table = schema.snapshots
    last = tx.execute(sa.select(sa.func.max(table.c.number))).scalar()
    number = 0 if last is None else int(last) + 1
    begun_ms = _now_ms() if status == PREPARING else None
    values = {"number": number, "status": status, "mode": mode, "asked": asked, "name": name}
    tx.execute(sa.insert(table).values(**values, to_blame=0, begun_ms=begun_ms))
    return number


def _bytes_between(tx: Connection, row: StageRow, since: int, until: int) -> int:
    """Of the files that epochs wrote; what merges write is not for a snapshot."""
    layers, segments = schema.layers, schema.segments
    total = 0
    for table, first, last in (
        (layers, layers.c.first, layers.c.last),
        (segments, segments.c.epoch, segments.c.epoch),
    ):
        mine = (table.c.stage == row.stage, table.c.branch == row.branch, first == last)
        found = tx.execute(sa.select(sa.func.sum(table.c.bytes)).where(*mine, first > since, last <= until))
        total += int(found.scalar() or 0)
    return total


def _forget_old(tx: Connection) -> None:
    """Of what nobody can return to, only the newest are remembered."""
    found = all_snapshots(tx)
    numbers = kept((one.number, one.asked) for one in found if one.is_complete)
    over = [one.number for one in found if one.number not in numbers and one.status in (ABORTED, DONE)]
    for number in over[: -limits.SNAPSHOTS_REMEMBERED_MAX]:
        delete(tx, number)


def _snapshot(row: sa.Row[tuple[object, ...]], parts: Sequence[sa.Row[tuple[object, ...]]]) -> Snapshot:
    return Snapshot(
        row.number,
        row.status,
        row.mode,
        bool(row.asked),
        row.name,
        bool(row.to_blame),
        row.reason,
        row.begun_ms,
        row.committed_ms,
        row.ended_ms,
        {part.stage: Part(part.epoch, part.positions) for part in parts},
        {part.stage: part.bytes for part in parts},
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
