"""Plans, attempts and manifests: the life of an epoch in the ledger.

Invariants: one open plan a stage; an attempt is here before it writes; a manifest is inserted in the
transaction whose first statement checks branch, generation, plan version and head, and that moves the
cursors from exactly where the previous manifest left them, or what was passed over behind it, because it held no rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import FencedError, LedgerError
from holdfast.core.ids import new_attempt_id
from holdfast.core.json import Json
from holdfast.ledger import schema, substreams
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.patience import repeatable
from holdfast.protocols.substreams import Report


@dataclass(frozen=True)
class StageRow:
    """Where a stage stands."""

    stage: str
    branch: int
    generation: int
    head: int
    plan_version: int


@dataclass(frozen=True)
class Commit:
    """Everything that one epoch's commit publishes."""

    stage: StageRow
    epoch: int
    attempt: str
    manifest: Json
    layer: Json | None  # rows, bytes, runs
    segments: Mapping[str, Json]  # by port: rows, bytes, files
    moves: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by input: from, to


def stage_row(tx: Connection, stage: str) -> StageRow:
    """Where a stage stands."""
    row = tx.execute(sa.select(schema.stages).where(schema.stages.c.stage == stage)).one()
    return StageRow(row.stage, row.branch, row.generation, row.head, row.plan_version)


def all_registered(tx: Connection, stages: Sequence[str]) -> bool:
    """Whether every stage has been run at least once, so that its row and its cursors are there."""
    known = set(tx.execute(sa.select(schema.stages.c.stage)).scalars())
    return known.issuperset(stages)


def known_stage(tx: Connection, stage: str) -> StageRow:
    """Where a stage stands, for somebody who may have got its name wrong."""
    names = list(tx.execute(sa.select(schema.stages.c.stage)).scalars())
    if stage not in names:
        raise LedgerError(
            f"there is no stage {stage!r} in this flow",
            operation="look up",
            hint=f"Its stages are {', '.join(names)}."
            if names
            else "It has not got as far as its first stage.",
        )
    return stage_row(tx, stage)


def own_row(tx: Connection, stage: str, generation: int) -> StageRow:
    """Where a stage stands, for the process that means to change it: refused to a deposed one.

    Everything that writes starts from this row and hands it to the fence of its transaction, so a process that
    reads after it was replaced cannot go on in its successor's name.
    """
    row = stage_row(tx, stage)
    if row.generation != generation:
        raise FencedError(
            f"generation {generation} was deposed: generation {row.generation} owns the stage",
            stage=stage,
            hint="Nothing of this process is visible any more; it must stop.",
        )
    return row


def open_plan(tx: Connection, row: StageRow) -> Json | None:
    """The plan of the epoch after the head, if there is one."""
    return plan_of(tx, row, row.head + 1)


def plan_of(tx: Connection, row: StageRow, epoch: int) -> Json | None:
    """The recorded plan of an epoch."""
    table = schema.plans
    found = tx.execute(
        sa.select(table.c.body).where(
            table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch == epoch
        )
    ).scalar_one_or_none()
    return found


def record_plan(
    ledger: Ledger, row: StageRow, body: Json, attempt_kind: str = "epoch"
) -> tuple[StageRow, str]:
    """Write or replace the open plan and register its first attempt, in one transaction."""
    with ledger.unfenced_write() as tx:
        fence_stage(tx, row, plan_version=row.plan_version + 1)
        epoch, version = row.head + 1, row.plan_version + 1
        table = schema.plans
        tx.execute(
            sa.delete(table).where(
                table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch == epoch
            )
        )
        values = {"stage": row.stage, "branch": row.branch, "epoch": epoch, "version": version, "body": body}
        tx.execute(sa.insert(table).values(values))
        attempt = _insert_attempt(tx, row, attempt_kind, epoch)
    return StageRow(row.stage, row.branch, row.generation, row.head, version), attempt


def open_attempt(ledger: Ledger, row: StageRow, kind: str, epoch: int) -> str:
    """Register a further attempt, before any of its tasks writes."""
    with ledger.unfenced_write() as tx:
        _fence_generation(tx, row)
        return _insert_attempt(tx, row, kind, epoch)


def close_attempt(ledger: Ledger, row: StageRow, attempt: str) -> None:
    """Give an attempt up: it can no longer commit, and the sweeper may delete what it wrote."""
    table = schema.attempts
    with ledger.unfenced_write() as tx:
        _fence_generation(tx, row)
        tx.execute(
            sa.update(table)
            .where(table.c.attempt == attempt, table.c.status == "open")
            .values(status="closed")
        )


def attempts_at(tx: Connection, row: StageRow, epoch: int) -> int:
    """How often an epoch that is not committed yet was tried, by this process and those before it."""
    table = schema.attempts
    mine = (table.c.stage == row.stage, table.c.kind == "epoch", table.c.epoch == epoch)
    return int(tx.execute(sa.select(sa.func.count()).where(*mine)).scalar_one())


@repeatable
def commit_epoch(ledger: Ledger, commit: Commit) -> StageRow:
    """Publish an epoch: fence, manifest, layer, segments and cursors in one transaction.

    A commit whose answer was lost is found again by its attempt, so it may be repeated.
    """
    row, epoch = commit.stage, commit.epoch
    with ledger.unfenced_write() as tx:
        try:
            fence_stage(tx, row, head=epoch)
        except FencedError:
            if not _is_mine(tx, commit):
                raise
        else:
            _settle_attempt(tx, commit.attempt)
            _insert_manifest(tx, commit)
            move_cursors(tx, row.stage, epoch, commit.moves)
            report_substreams(tx, commit.manifest)
    return StageRow(row.stage, row.branch, row.generation, epoch, row.plan_version)


def commit_files(tx: Connection, row: StageRow, attempt: str, epochs: tuple[int, int], layer: Json) -> None:
    """Name a layer's files: from here on they exist."""
    values = {"stage": row.stage, "branch": row.branch, "first": epochs[0], "last": epochs[1]}
    tx.execute(sa.insert(schema.layers).values(**values, attempt=attempt, status="live", **layer))


def commit_segment(tx: Connection, row: StageRow, attempt: str, epoch: int, port: str, segment: Json) -> None:
    """Name a segment's files: from here on they exist."""
    values = {"stage": row.stage, "branch": row.branch, "epoch": epoch, "port": port}
    tx.execute(sa.insert(schema.segments).values(**values, attempt=attempt, status="live", **segment))


def settle_attempt(tx: Connection, row: StageRow, attempt: str) -> None:
    """Fence, then mark an attempt committed: the opening of every commit that is not an epoch's."""
    _fence_generation(tx, row)
    _settle_attempt(tx, attempt)


def manifest_of(tx: Connection, row: StageRow, epoch: int) -> Json | None:
    """The body of an epoch's manifest."""
    table = schema.manifests
    return tx.execute(
        sa.select(table.c.body).where(
            table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch == epoch
        )
    ).scalar_one_or_none()


def committed_ms(tx: Connection, row: StageRow, epoch: int) -> int | None:
    """When an epoch was committed, by the clock of the process that did."""
    table = schema.manifests
    return tx.execute(
        sa.select(table.c.committed_ms).where(
            table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch == epoch
        )
    ).scalar_one_or_none()


def _insert_manifest(tx: Connection, commit: Commit) -> None:
    row, epoch, attempt = commit.stage, commit.epoch, commit.attempt
    values = {"stage": row.stage, "branch": row.branch, "epoch": epoch, "revision": 0, "attempt": attempt}
    now_ms = time.time_ns() // 1_000_000
    tx.execute(sa.insert(schema.manifests).values(**values, committed_ms=now_ms, body=commit.manifest))
    if commit.layer is not None:
        commit_files(tx, row, attempt, (epoch, epoch), commit.layer)
    for port, segment in commit.segments.items():
        commit_segment(tx, row, attempt, epoch, port, segment)


def move_cursors(tx: Connection, stage: str, epoch: int, moves: Mapping[str, tuple[int, int]]) -> None:
    """Move the cursors of a stage from exactly where its last epoch left them."""
    table, consumer = schema.cursors, f"stage:{stage}"
    for name, (start, stop) in moves.items():
        moved = tx.execute(
            sa.update(table)
            .where(table.c.consumer == consumer, table.c.input == name, table.c.processed == start)
            .values(processed=stop)
        )
        if moved.rowcount != 1:
            raise LedgerError(
                f"input {name} does not start at {start}, where the last epoch ended",
                operation="commit",
                stage=stage,
                epoch=epoch,
            )


def pass_over(ledger: Ledger, row: StageRow, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Leave positions behind that hold no rows: cursors move, and there is no epoch.

    The plan version is raised with it: whoever is about to plan from the old positions, or to add them to a snapshot, is
    refused. An open plan has raised it before, so nothing that is planned loses its place.
    """
    with ledger.unfenced_write() as tx:
        fence_stage(tx, row, plan_version=row.plan_version + 1)
        move_cursors(tx, row.stage, row.head + 1, ranges)


def report_substreams(tx: Connection, manifest: Json) -> None:
    """Let the tracker know what an epoch did to substreams, in the transaction that commits it."""
    told = manifest.get("substreams")
    if told is not None:
        substreams.apply_report(tx, told["scope"], Report.from_json(told["report"]))


def _is_mine(tx: Connection, commit: Commit) -> bool:
    """Whether a refused commit had already gone through, its reply lost."""
    table, row = schema.manifests, commit.stage
    mine = tx.execute(
        sa.select(table.c.attempt).where(
            table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch == commit.epoch
        )
    ).scalar_one_or_none()
    return mine == commit.attempt


def fence_stage(tx: Connection, row: StageRow, **values: int) -> None:
    """The first statement of a commit: the stage's row changes only if it is as expected."""
    table = schema.stages
    changed = tx.execute(
        sa.update(table)
        .where(
            table.c.stage == row.stage,
            table.c.branch == row.branch,
            table.c.generation == row.generation,
            table.c.plan_version == row.plan_version,
            table.c.head == row.head,
        )
        .values(**values)
    )
    if changed.rowcount != 1:
        raise _refused(tx, row)


def _fence_generation(tx: Connection, row: StageRow) -> None:
    table = schema.stages
    changed = tx.execute(
        sa.update(table)
        .where(table.c.stage == row.stage, table.c.branch == row.branch, table.c.generation == row.generation)
        .values(generation=row.generation)
    )
    if changed.rowcount != 1:
        raise _refused(tx, row)


def _refused(tx: Connection, row: StageRow) -> FencedError:
    now = stage_row(tx, row.stage)
    return FencedError(
        f"refused: the writer expected branch {row.branch}, generation {row.generation}, head {row.head}, plan"
        f" version {row.plan_version}; the ledger has branch {now.branch}, generation {now.generation}, head"
        f" {now.head}, plan version {now.plan_version}",
        operation="commit",
        stage=row.stage,
        epoch=row.head + 1,
        hint="Another process owns this stage now; nothing of this attempt is visible.",
    )


def _insert_attempt(tx: Connection, row: StageRow, kind: str, epoch: int) -> str:
    attempt = new_attempt_id()
    values = {"attempt": attempt, "stage": row.stage, "kind": kind, "epoch": epoch}
    tx.execute(sa.insert(schema.attempts).values(**values, generation=row.generation, status="open"))
    return attempt


def _settle_attempt(tx: Connection, attempt: str) -> None:
    table = schema.attempts
    settled = tx.execute(
        sa.update(table)
        .where(table.c.attempt == attempt, table.c.status == "open")
        .values(status="committed")
    )
    if settled.rowcount != 1:
        raise FencedError(f"attempt {attempt} was closed and cannot commit", operation="commit")
