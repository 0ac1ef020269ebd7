"""The only one that deletes what attempts have written, and the copies of tables that plans have named.

Invariants: files are condemned in the ledger before they are unlinked, and nothing may name a condemned
file; an attempt's directory goes whole once the attempt is over and none of its files is named. A crash
between condemning and unlinking leaves files that the next sweep finds.

Not its business is what no attempt has written: a process takes away its own drafts, leases and scratch, the log of a
stream lets go of batches below what anybody needs, and a reset removes everything. A test lists who deletes, and what.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from holdfast.core import crashpoints, limits
from holdfast.ledger import files, pins, readers, schema
from holdfast.ledger.epochs import StageRow, own_row
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.retention import superseded, trimmed_below
from holdfast.storage.shipper import Route, settled_epoch
from holdfast.storage.table_copies import sweep_copies
from holdfast.storage.workdir import DATA, attempt_directory

Held = Callable[[], AbstractContextManager[Collection[int]]]


def sweep(
    ledger: Ledger,
    root: Path,
    stage: str,
    generation: int,
    consumers: Sequence[str],
    route: Route,
    held: Held,
) -> None:
    """Condemn what nobody needs, unlink what is condemned, and remove directories of attempts that are over.

    `held` are the layers that jobs of this process read, until what is not among them is condemned.
    """
    with held() as pinned:
        with ledger.read() as tx:
            row = own_row(tx, stage, generation)
            safe = settled_epoch(tx, row, route)
            others = pins.pinned(tx)
            layers = superseded(files.live_layers(tx, row), safe, {*pinned, *others.layers})
            below = _needed_by_nobody(tx, row, consumers, safe)
            kept = {*others.segments, *(_newest_with_rows(tx, row) if route.practice else ())}
            segments = [i for i in _segments_below(tx, row, below) if i not in kept]
            oldest = files.oldest_manifest(tx, row)
        if layers or segments:
            needed_from = partial(_needed_by_nobody, row=row, consumers=consumers, safe=safe)
            files.condemn(ledger, row, layers, segments, needed_from)
            crashpoints.reach("sweep.after_condemn")
    places = [root, *route.mirrors.values()]
    _unlink_condemned(ledger, places, row)
    _remove_spent(ledger, places, row)
    sweep_copies(ledger, root, route.mirrors.values(), row)
    # In strides, so that a long-running flow does not pay a transaction for every epoch it forgets.
    if oldest is not None and below - oldest > 2 * limits.HISTORY_EPOCHS_MAX:
        files.fold_history(ledger, row, below - limits.HISTORY_EPOCHS_MAX)


def sweep_strays(ledger: Ledger, root: Path, stages: Sequence[str]) -> None:
    """Remove directories that belong to no attempt: what a deposed process wrote after it was swept."""
    found = [path for stage in stages for path in (root / DATA / stage).glob("*") if path.is_dir()]
    with ledger.read() as tx:
        known = set(tx.execute(sa.select(schema.attempts.c.attempt)).scalars())
    for path in found:
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)


def _needed_by_nobody(tx: sa.Connection, row: StageRow, consumers: Sequence[str], safe: int) -> int:
    """Epochs of the stage's channels below this can be asked for by no consumer."""
    cursors = schema.cursors
    found = tx.execute(
        sa.select(cursors.c.input, cursors.c.needed).where(
            sa.or_(cursors.c.consumer.in_(list(consumers)), cursors.c.consumer.startswith(readers.PREFIX)),
        )
    )
    needed = [position for name, position in found if name.rpartition(".")[0] == f"channel:{row.stage}"]
    return trimmed_below(needed, safe)


def _segments_below(tx: sa.Connection, row: StageRow, below: int) -> list[int]:
    table = schema.segments
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    found = tx.execute(
        sa.select(table.c.id).where(*mine, table.c.status != "condemned", table.c.epoch < below)
    )
    return list(found.scalars())


def _newest_with_rows(tx: sa.Connection, row: StageRow) -> list[int]:
    """Of each port, the segments of the last epoch that wrote rows to it."""
    table = schema.segments
    live = table.c.stage == row.stage, table.c.branch == row.branch, table.c.status == "live"
    newest = (
        sa.select(table.c.port, sa.func.max(table.c.epoch).label("epoch"))
        .where(*live, table.c.rows > 0)
        .group_by(table.c.port)
        .subquery()
    )
    found = tx.execute(
        sa.select(table.c.id).where(*live, table.c.port == newest.c.port, table.c.epoch == newest.c.epoch)
    )
    return list(found.scalars())


def _unlink_condemned(ledger: Ledger, places: Sequence[Path], row: StageRow) -> None:
    with ledger.read() as tx:
        layers, segments = files.condemned(tx, row.stage)
    for _, group in (*layers, *segments):
        for file in group:
            for place in places:
                (place / file["path"]).unlink(missing_ok=True)
            crashpoints.reach("sweep.mid")
    if layers or segments:
        files.forget(ledger, row.generation, [i for i, _ in layers], [i for i, _ in segments])


def _remove_spent(ledger: Ledger, places: Sequence[Path], row: StageRow) -> None:
    with ledger.read() as tx:
        spent = files.spent_attempts(tx, row)
    for attempt, _ in spent:
        for place in places:
            shutil.rmtree(place / attempt_directory(row.stage, attempt), ignore_errors=True)
    done = [attempt for attempt, counted in spent if counted]
    if done:
        files.forget_attempts(ledger, row.generation, done)
