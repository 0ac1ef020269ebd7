"""What inputs offer to a stage: the positions that hold rows, behind however many that hold none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.inputs import number_of_items, rows_written, segments

# Positions that one look at an input brings; an epoch that could take more takes them next time.
OFFERS_MAX = 1_000


@dataclass(frozen=True)
class Unit:
    """One position of an input that a plan may take: a source's ordinal or a channel's epoch."""

    position: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Offered:
    """What an input has from a position on."""

    start: int
    stop: int  # where the input ends now
    units: Sequence[
        Unit
    ]  # consecutive, from the first position that holds rows; not all of them, if they are many

    @property
    def empty_until(self) -> int:
        """The first position that holds rows; the input's end if none does."""
        return self.units[0].position if self.units else self.stop

    @property
    def rows(self) -> int:
        """Rows in the units."""
        return sum(unit.rows for unit in self.units)


def offered_items(tx: Connection, source: str, start: int, limit: int = OFFERS_MAX) -> Offered:
    """What a source offers from `start` on; an item that cannot tell its rows counts as one."""
    units = _items(tx, source, start, limit)
    filled = next((at for at, unit in enumerate(units) if unit.rows), None)
    if filled is not None:
        units = units[filled:]
    elif len(units) == limit:
        first = _first_item_with_rows(tx, source, start + limit)
        units = [] if first is None else _items(tx, source, first, limit)
    else:
        return Offered(start, start + len(units), ())
    return Offered(start, max(start, number_of_items(tx, source)), units)


def offered_epochs(tx: Connection, stage: str, port: str, start: int, limit: int = OFFERS_MAX) -> Offered:
    """What a channel offers from `start` on: its committed epochs."""
    stages, table = schema.stages, schema.segments
    row = tx.execute(sa.select(stages.c.head, stages.c.branch).where(stages.c.stage == stage)).one()
    found = tx.execute(
        sa.select(table.c.epoch, table.c.rows, table.c.bytes)
        .where(
            table.c.stage == stage,
            table.c.branch == row.branch,
            table.c.port == port,
            table.c.epoch >= start,
            table.c.rows > 0,
            table.c.status != "condemned",
        )
        .order_by(table.c.epoch)
        .limit(limit)
    ).all()
    filled = {epoch: Unit(epoch, rows, size) for epoch, rows, size in found}
    first = min(filled, default=row.head + 1)
    last = min(int(row.head), first + limit - 1)
    units = [filled.get(epoch, Unit(epoch, 0, 0)) for epoch in range(first, last + 1)]
    return Offered(start, max(start, int(row.head) + 1), units)


def first_gone(tx: Connection, stage: str, port: str, start: int, stop: int) -> int | None:
    """The first of a channel's epochs that held rows and is no longer kept: it only looks as if it held none."""
    kept = {segment.epoch for segment in segments(tx, stage, port, start, stop)}
    held = [epoch for epoch, rows in rows_written(tx, stage, port, start, stop).items() if rows]
    return next((epoch for epoch in held if epoch not in kept), None)


def _items(tx: Connection, source: str, start: int, limit: int) -> list[Unit]:
    table = schema.source_items
    found = tx.execute(
        sa.select(table.c.ordinal, sa.func.coalesce(table.c.rows, 1), table.c.bytes)
        .where(table.c.source == source, table.c.ordinal >= start)
        .order_by(table.c.ordinal)
        .limit(limit)
    )
    return [Unit(*row) for row in found]


def _first_item_with_rows(tx: Connection, source: str, start: int) -> int | None:
    table = schema.source_items
    mine = (table.c.source == source, table.c.ordinal >= start, sa.func.coalesce(table.c.rows, 1) > 0)
    return tx.execute(sa.select(sa.func.min(table.c.ordinal)).where(*mine)).scalar_one_or_none()
