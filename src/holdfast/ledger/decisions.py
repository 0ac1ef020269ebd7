"""The decisions of sinks that prepare and commit: a prepared epoch is to be committed if, and only if, one is here.

A sink has one decision at most, that of its last epoch: the one before was confirmed by its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.patience import repeatable


@dataclass(frozen=True)
class Decision:
    """That an epoch, as it was prepared under a token, is to be committed."""

    branch: int
    epoch: int
    revision: int
    generation: int
    token: str


@repeatable
def decide(ledger: Ledger, generation: int, sink: str, decision: Decision) -> None:
    """Write a decision down in place of the one before; refused for a process that was replaced."""
    table = schema.decisions
    with ledger.write(generation) as tx:
        tx.execute(sa.delete(table).where(table.c.sink == sink))
        tx.execute(
            sa.insert(table).values(
                sink=sink,
                branch=decision.branch,
                epoch=decision.epoch,
                revision=decision.revision,
                generation=decision.generation,
                token=decision.token,
            )
        )


@repeatable
def withdraw(ledger: Ledger, generation: int, sink: str) -> None:
    """Forget a decision whose prepared epoch the target has lost: it is prepared anew."""
    with ledger.write(generation) as tx:
        tx.execute(sa.delete(schema.decisions).where(schema.decisions.c.sink == sink))


def last_of(tx: Connection, sink: str) -> Decision | None:
    """The last decision of a sink."""
    table = schema.decisions
    found = tx.execute(
        sa.select(table.c.branch, table.c.epoch, table.c.revision, table.c.generation, table.c.token).where(
            table.c.sink == sink
        )
    ).one_or_none()
    return None if found is None else Decision(*found)
