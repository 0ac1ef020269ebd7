"""From which epoch on a sink's target is given rows: the first of its stage, unless sink or target came later.

Invariant: a target without a record is a new one only while its sink stands where the target starts; a target that is
found empty later on was emptied, and the flow stops.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.snapshots import last_complete


def start_of(tx: Connection, sink: str) -> int:
    """The first epoch that a sink's target was to be given."""
    table = schema.sink_starts
    return int(tx.execute(sa.select(table.c.epoch).where(table.c.sink == sink)).scalar() or 0)


def set_start(tx: Connection, sink: str, epoch: int) -> None:
    """Say that a sink's target is a new one, and with which epoch it starts."""
    table = schema.sink_starts
    tx.execute(sa.delete(table).where(table.c.sink == sink))
    if epoch > 0:
        tx.execute(sa.insert(table).values(sink=sink, epoch=epoch))


def first_for_newcomers(tx: Connection, row: StageRow) -> int:
    """The first epoch of a stage for a sink that is new to it: the next, in a region that of the last snapshot.

    A sink that stood further on there would be ahead of a return to that snapshot, without having been given anything.
    """
    last = last_complete(tx, [row.stage])
    return (last.parts[row.stage].epoch if last else row.head) + 1
