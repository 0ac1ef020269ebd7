"""Commits of a recovery that give a stage another state than its last epoch left: empty, or made anew.

Invariants: the fence is the first statement; cursors move from exactly where they were; the old layers are let go in
the same transaction that names the new ones, so a state is never half there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.ids import new_attempt_id
from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.epochs import (
    StageRow,
    commit_files,
    fence_stage,
    move_cursors,
    report_substreams,
    settle_attempt,
)
from holdfast.ledger.ledger import Ledger, record_event

# The kind of the events that say what a stage has given up.
SKIPPED = "skipped"

_NOTHING = {"rows": 0, "bytes": 0, "runs": []}


def commit_skip(
    ledger: Ledger,
    row: StageRow,
    has_state: bool,
    ranges: Mapping[str, tuple[int, int]],
    manifest: Json,
) -> None:
    """An epoch that reads nothing, moves the cursors over what is given up, and leaves an empty state."""
    epoch = row.head + 1
    plans, manifests = schema.plans, schema.manifests
    with ledger.unfenced_write() as tx:
        fence_stage(tx, row, head=epoch, plan_version=row.plan_version + 1)
        mine = (plans.c.stage == row.stage, plans.c.branch == row.branch, plans.c.epoch == epoch)
        tx.execute(sa.delete(plans).where(*mine))
        key = {"stage": row.stage, "branch": row.branch, "epoch": epoch}
        body = {"ranges": {name: list(part) for name, part in ranges.items()}, "rows": 0, "skip": True}
        tx.execute(sa.insert(plans).values(**key, version=row.plan_version + 1, body=body))
        attempt = new_attempt_id()
        values = {**key, "revision": 0, "attempt": attempt, "committed_ms": time.time_ns() // 1_000_000}
        tx.execute(sa.insert(manifests).values(**values, body=manifest))
        if has_state:
            _let_go_of_layers(tx, row)
            commit_files(tx, row, attempt, (0, epoch), _NOTHING)
        move_cursors(tx, row.stage, epoch, ranges)
        report_substreams(tx, manifest)
        reason = f"{manifest['rows_skipped']} rows unread, {manifest['state_rows_lost']} rows of state"
        record_event(tx, SKIPPED, reason, stage=row.stage, epoch=epoch, generation=row.generation)


def give_up_segments(ledger: Ledger, row: StageRow) -> int:
    """Rows that were lost before anybody read them are read as none, and said to be skipped; how many epochs.

    The plan of such an epoch says of which ports: whoever follows the plan in peace leaves the same rows out.
    """
    table = schema.segments
    mine = (table.c.stage == row.stage, table.c.branch == row.branch, table.c.status == "lost")
    with ledger.write(row.generation) as tx:
        columns = table.c.epoch, table.c.port, table.c.rows
        found = tx.execute(sa.select(*columns).where(*mine).order_by(table.c.epoch)).all()
        if not found:
            return 0
        tx.execute(sa.update(table).where(*mine).values(status="live", rows=0, bytes=0, files=[]))
        lost = sorted({part.epoch for part in found})
        for epoch in lost:
            _say_in_plan(tx, row, epoch, [part.port for part in found if part.epoch == epoch])
        rows = sum(part.rows for part in found)
        reason = f"{rows} rows that epochs {lost[0]} to {lost[-1]} wrote and nobody had read"
        record_event(tx, SKIPPED, reason, stage=row.stage, epoch=lost[-1], generation=row.generation)
    return len(lost)


def _say_in_plan(tx: Connection, row: StageRow, epoch: int, ports: Sequence[str]) -> None:
    plans = schema.plans
    mine = (plans.c.stage == row.stage, plans.c.branch == row.branch, plans.c.epoch == epoch)
    body = tx.execute(sa.select(plans.c.body).where(*mine)).scalar_one_or_none()
    if body is not None:
        given_up = sorted({*ports, *body.get("given_up", [])})
        tx.execute(sa.update(plans).where(*mine).values(body={**body, "given_up": given_up}))


def commit_rebuild(ledger: Ledger, row: StageRow, first: int, made: Sequence[tuple[int, str, Json]]) -> None:
    """The spine at the head, made from the epochs that its open buckets depend on; nothing below them is left."""
    with ledger.unfenced_write() as tx:
        fence_stage(tx, row, head=row.head)
        _let_go_of_layers(tx, row)
        if first > 0:
            commit_files(tx, row, new_attempt_id(), (0, first - 1), _NOTHING)
        for epoch, attempt, layer in made:
            settle_attempt(tx, row, attempt)
            commit_files(tx, row, attempt, (epoch, epoch), layer)


def _let_go_of_layers(tx: Connection, row: StageRow) -> None:
    table = schema.layers
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    tx.execute(sa.update(table).where(*mine).values(status="condemned"))
