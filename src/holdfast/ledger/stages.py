"""Stages as the ledger knows them: registration when a flow starts, and the schema of their state."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.groups import join_group
from holdfast.ledger.ledger import Ledger, record_event

MAIN_BRANCH = 0


def register(
    ledger: Ledger,
    generation: int,
    stage: str,
    state_schema: Json | None,
    inputs: Sequence[str],
    view: Json | None = None,
) -> None:
    """Make sure that a stage and its cursors are in the ledger. Whether it is the one of that name was settled before.

    `view` says how the state reads to a person; unlike the schema it may change at any time.
    """
    with ledger.write(generation) as tx:
        row = tx.execute(sa.select(schema.stages).where(schema.stages.c.stage == stage)).one_or_none()
        if row is None:
            values = {
                "stage": stage,
                "branch": MAIN_BRANCH,
                "generation": generation,
                "head": -1,
                "plan_version": 0,
            }
            tx.execute(sa.insert(schema.stages).values(**values, state_schema=state_schema))
            join_group(tx, generation, stage)
            record_event(tx, "stage added", "first run of this stage", stage=stage, generation=generation)
        elif row.state_schema != state_schema:
            tx.execute(
                sa.update(schema.stages)
                .where(schema.stages.c.stage == stage)
                .values(state_schema=state_schema)
            )
        tx.execute(sa.delete(schema.state_views).where(schema.state_views.c.stage == stage))
        if view is not None:
            tx.execute(sa.insert(schema.state_views).values(stage=stage, body=view))
        for name in inputs:
            add_cursor(tx, f"stage:{stage}", name, _start(tx, name))


def add_cursor(tx: Connection, consumer: str, name: str, start: int) -> bool:
    """Give a consumer a cursor on an input, unless it has one; whether it had none."""
    table = schema.cursors
    known = tx.execute(
        sa.select(table.c.input).where(table.c.consumer == consumer, table.c.input == name)
    ).first()
    if known is None:
        tx.execute(sa.insert(table).values(consumer=consumer, input=name, processed=start, needed=start))
    return known is None


def _start(tx: Connection, name: str) -> int:
    """Where a new stage begins to read: at the start, but not what was found whole when others read it.

    What a source sets aside is read from where it began to do so; before, malformed rows stopped the flow.
    """
    source, _, port = name.partition("#")
    if not port:
        return 0
    table = schema.cursors
    read = tx.execute(sa.select(sa.func.max(table.c.processed)).where(table.c.input == source)).scalar()
    return int(read or 0)
