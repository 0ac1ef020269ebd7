"""Branches: a stage that returns to an older epoch goes on under another number.

Invariants: what lies up to the return is shared, and moves to the new branch; what lies above is condemned in the same
transaction, so that nobody can take an undone epoch for its successor. Who holds an epoch of an older branch asks here
whether it is still part of the line.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow


def is_shared(tx: Connection, row: StageRow, branch: int, epoch: int) -> bool:
    """Whether an epoch that was published under a branch belongs to the line of a stage's branch."""
    table = schema.branches
    found = tx.execute(sa.select(table).where(table.c.stage == row.stage)).all()
    begun = {one.branch: one for one in found}
    at = row.branch
    while at != branch:
        if at not in begun or epoch > begun[at].epoch:
            return False
        at = begun[at].parent
    return True


def begin(tx: Connection, row: StageRow, epoch: int, reason: str) -> int:
    """Let a stage return to an epoch under a new branch; how many epochs that undoes."""
    branch = row.branch + 1
    values = {"stage": row.stage, "branch": branch, "parent": row.branch, "epoch": epoch}
    now_ms = time.time_ns() // 1_000_000
    tx.execute(sa.insert(schema.branches).values(**values, begun_ms=now_ms, reason=reason))
    for table, at in (
        (schema.plans, schema.plans.c.epoch),
        (schema.manifests, schema.manifests.c.epoch),
        (schema.layers, schema.layers.c.last),
        (schema.segments, schema.segments.c.epoch),
    ):
        mine = (table.c.stage == row.stage, table.c.branch == row.branch)
        tx.execute(sa.update(table).where(*mine, at <= epoch).values(branch=branch))
        if "status" in table.c:
            tx.execute(sa.update(table).where(*mine).values(status="condemned"))
        else:
            tx.execute(sa.delete(table).where(*mine))
    stages = schema.stages
    tx.execute(
        sa.update(stages)
        .where(stages.c.stage == row.stage)
        .values(branch=branch, head=epoch, plan_version=row.plan_version + 1)
    )
    attempts, tiers = schema.attempts, schema.tiers
    under_way = (attempts.c.stage == row.stage, attempts.c.status == "open")
    tx.execute(sa.update(attempts).where(*under_way).values(status="closed"))
    tx.execute(sa.update(tiers).where(tiers.c.stage == row.stage, tiers.c.safe > epoch).values(safe=epoch))
    return row.head - epoch
