"""How far the members of a group have come with a stage that they compute in step."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.groups import group_row
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.patience import repeatable


@repeatable
def computed(ledger: Ledger, generation: int, stage: str, worker: str, epoch: int) -> None:
    """A member has computed an epoch, whoever committed it."""
    table = schema.replicas
    with ledger.write(generation) as tx:
        tx.execute(sa.delete(table).where(table.c.stage == stage, table.c.worker == worker))
        tx.execute(sa.insert(table).values(stage=stage, worker=worker, epoch=epoch))


def all_have(tx: Connection, row: StageRow, group: str) -> bool:
    """Whether every member has computed the last committed epoch, or joined after it."""
    table = schema.replicas
    members = found.members if (found := group_row(tx, group)) else ()
    rows = tx.execute(sa.select(table.c.worker, table.c.epoch).where(table.c.stage == row.stage))
    reached = {worker: epoch for worker, epoch in rows}
    return all(reached.get(member, row.head) >= row.head for member in members)
