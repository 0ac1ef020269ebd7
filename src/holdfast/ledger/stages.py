"""Stages as the ledger knows them: registration when a flow starts, and the schema of their state."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.flow.on_stage import OLDEST
from holdfast.ledger import schema
from holdfast.ledger.groups import join_group
from holdfast.ledger.ledger import record_event
from holdfast.ledger.starts import begin_stage

MAIN_BRANCH = 0


def register(
    tx: Connection,
    generation: int,
    stage: str,
    state_schema: Json | None,
    inputs: Sequence[str],
    view: Json | None = None,
    read_from: str = OLDEST,
) -> None:
    """Make sure that a stage and its cursors are in the ledger. Whether it is the one of that name was settled before.

    `view` says how the state reads to a person; unlike the schema it may change at any time. `read_from` is where one that
    is new begins.
    """
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
            sa.update(schema.stages).where(schema.stages.c.stage == stage).values(state_schema=state_schema)
        )
    tx.execute(sa.delete(schema.state_views).where(schema.state_views.c.stage == stage))
    if view is not None:
        tx.execute(sa.insert(schema.state_views).values(stage=stage, body=view))
    for name in inputs:
        begin_stage(tx, stage, name, read_from, generation)
