"""Plans that wait for their manifests, and how long epochs take: by which a supervisor tells who is stuck."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.ledger import schema
from holdfast.protocols.stuck import OpenPlan


def open_plans(tx: Connection) -> dict[str, OpenPlan]:
    """By stage, the plan of the epoch after its head, where there is one."""
    stages, plans = schema.stages, schema.plans
    follows = (
        plans.c.stage == stages.c.stage,
        plans.c.branch == stages.c.branch,
        plans.c.epoch == stages.c.head + 1,
    )
    found = tx.execute(
        sa.select(stages.c.stage, stages.c.branch, plans.c.epoch, stages.c.plan_version).join(
            plans, sa.and_(*follows)
        )
    )
    return {stage: OpenPlan(stage, branch, epoch, version) for stage, branch, epoch, version in found}


def epochs_ms(tx: Connection, stage: str) -> list[float]:
    """How long the newest epochs of a stage took."""
    table = schema.manifests
    newest = sa.select(table.c.body).where(table.c.stage == stage).order_by(table.c.epoch.desc())
    found = tx.execute(newest.limit(limits.STUCK_EPOCHS_KNOWN)).scalars()
    return [1000 * float(body.get("seconds") or 0.0) for body in found]
