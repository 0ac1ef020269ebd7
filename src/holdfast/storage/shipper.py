"""Carries committed files to the disk in the background and raises the safe point behind them.

Invariants: an epoch is below the disk's safe point only when all its files, and their directories, have
been fsynced; safe points have no gaps; a stage's `needed` cursors follow its safe point, so that an input
is let go only when the state and the output made from it are durable.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.json import Json
from holdfast.ledger import files, schema
from holdfast.ledger.epochs import StageRow, own_row, plan_of
from holdfast.ledger.ledger import Ledger
from holdfast.storage.atomic import fsync_dir, fsync_file

DISK = "disk"


def ship(ledger: Ledger, root: Path, stage: str, generation: int) -> bool:
    """Make all committed epochs of a stage durable; whether there was anything to do."""
    with ledger.read() as tx:
        row = own_row(tx, stage, generation)
        safe = files.safe_point(tx, stage, DISK)
        paths = _unshipped(tx, row, safe)
        plan = plan_of(tx, row, row.head)
    if row.head <= safe:
        return False
    crashpoints.reach("ship.before")
    make_durable(root, paths)
    needed = {name: int(stop) for name, (_, stop) in (plan or {"ranges": {}})["ranges"].items()}
    files.raise_safe_point(ledger, row, DISK, row.head, needed)
    crashpoints.reach("ship.after")
    return True


def make_durable(root: Path, paths: list[str]) -> None:
    """Fsync files, then every directory between them and the root, each once."""
    directories: dict[Path, None] = {}
    for path in paths:
        fsync_file(root / path)
        crashpoints.reach("ship.mid")
        directories.update(
            dict.fromkeys(parent for parent in (root / path).parents if root in (parent, *parent.parents))
        )
    for directory in sorted(directories, key=lambda d: -len(d.parts)):
        fsync_dir(directory)


def _unshipped(tx: sa.Connection, row: StageRow, safe: int) -> list[str]:
    """Files of epochs above the safe point; a merge makes its own files durable before it commits."""
    layers, segments = schema.layers, schema.segments
    runs = tx.execute(
        sa.select(layers.c.runs).where(
            layers.c.stage == row.stage,
            layers.c.branch == row.branch,
            layers.c.status == "live",
            layers.c.last > safe,
            layers.c.first == layers.c.last,
        )
    ).scalars()
    written = tx.execute(
        sa.select(segments.c.files).where(
            segments.c.stage == row.stage,
            segments.c.branch == row.branch,
            segments.c.status == "live",
            segments.c.epoch > safe,
        )
    ).scalars()
    named: list[Json] = [file for group in (*runs, *written) for file in group]
    return [file["path"] for file in named]
