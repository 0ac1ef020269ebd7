"""Carries committed files to further tiers in the background, and raises the safe points behind them.

Invariants: an epoch is below a tier's safe point only when all its files, and their directories, have reached the
tier; safe points have no gaps; a stage's `needed` cursors follow the slowest tier, so that an input is let go only
when the state and the output made from it are where the stage's policy wants them. A tier is the disk under the work
directory, or a mirror: another directory with the same files under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.json import Json
from holdfast.ledger import files, schema, snapshots
from holdfast.ledger.epochs import StageRow, manifest_of, own_row, plan_of
from holdfast.ledger.ledger import Ledger
from holdfast.storage import workdir
from holdfast.storage.atomic import copy_whole, fsync_dir, fsync_file
from holdfast.storage.checksums import fault

DISK, REPLICA, STANDBY = "disk", "replica", "standby"

# The disk, for a stage whose layers stay behind: another policy later must not take them to be there.
OUTPUT = "disk-output"


@dataclass(frozen=True)
class Route:
    """How far a stage's files are carried."""

    disk: bool = True
    mirrors: Mapping[str, Path] = field(default_factory=dict)  # by tier
    every: int = 1  # epochs that are carried to a mirror at a time
    rebuilds: bool = (
        False  # layers stay behind; inputs are kept for as long as an open bucket depends on them
    )
    captured: bool = (
        False  # only what a snapshot covers is carried, and inputs are kept from where one reads on
    )
    practice: bool = False  # the newest rows of a port stay: standbys of its readers practise on them

    @property
    def tiers(self) -> tuple[str, ...]:
        """In the order in which files reach them."""
        here = OUTPUT if self.rebuilds else DISK
        return (*((here,) if self.disk else ()), *self.mirrors)

    def carry(self, root: Path, paths: Sequence[str]) -> None:
        """Take files to all tiers, for a commit that must not come before."""
        for tier in self.tiers:
            self.carry_to(tier, root, paths)

    def carry_to(self, tier: str, root: Path, paths: Sequence[str]) -> None:
        """Take files to one tier."""
        if tier in self.mirrors:
            _mirror(root, self.mirrors[tier], paths)
        else:
            make_durable(root, paths)


def ship(ledger: Ledger, root: Path, stage: str, generation: int, route: Route) -> bool:
    """Carry all committed epochs of a stage as far as they go; whether there was anything to do."""
    with ledger.read() as tx:
        row = own_row(tx, stage, generation)
        safe = {tier: files.safe_point(tx, stage, tier) for tier in route.tiers}
        goal = _goal(tx, row, route)
        due = {
            tier: _unshipped(tx, row, at, goal, layers=not route.rebuilds)
            for tier, at in safe.items()
            if goal - at >= (route.every if tier in route.mirrors else 1)
        }
        settled_before = min(safe.values(), default=goal)
    if due:
        crashpoints.reach("ship.before")
    for tier, paths in due.items():
        route.carry_to(tier, root, paths)
    reached = {**safe, **dict.fromkeys(due, goal)}
    settled = min(reached.values(), default=goal)
    with ledger.read() as tx:
        needed = _needed(tx, row, settled, route)
        before = files.needed_of(tx, row)
        stale = any(before.get(name) != position for name, position in needed.items())
    if not due and (settled == settled_before and not stale):
        return False
    files.settle(ledger, row, {tier: reached[tier] for tier in due}, needed)
    if due:
        crashpoints.reach("ship.after")
    return bool(due)


def settled_epoch(tx: sa.Connection, row: StageRow, route: Route) -> int:
    """The highest epoch whose files are all where the policy wants them, and that no return goes below."""
    if route.captured:
        return min((part.epoch for part in snapshots.restorable(tx, row.stage)), default=-1)
    return min((files.safe_point(tx, row.stage, tier) for tier in route.tiers), default=row.head)


def make_durable(root: Path, paths: Iterable[str]) -> None:
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


def _mirror(root: Path, mirror: Path, paths: Sequence[str]) -> None:
    """Copy files that are not there yet, and see to it that they stay; a mirror is for nobody else's eyes either."""
    mirror.mkdir(mode=workdir.MODE, parents=True, exist_ok=True)
    for path in paths:
        if not (mirror / path).exists():
            (mirror / path).parent.mkdir(parents=True, exist_ok=True)
            copy_whole(root / path, mirror / path)
    make_durable(mirror, paths)


def bring_over(root: Path, mirror: Path, files: Sequence[Json]) -> bool:
    """Whether files are whole in a mirror, all of them, and now here as well."""
    if any(fault(mirror, file, deep=True) for file in files):
        return False
    for file in files:
        target = root / str(file["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_whole(mirror / str(file["path"]), target)
    make_durable(root, [str(file["path"]) for file in files])
    return True


def _needed(tx: sa.Connection, row: StageRow, settled: int, route: Route) -> dict[str, int]:
    """By input, the first position that may be asked for again."""
    if route.captured:
        oldest = snapshots.restorable(tx, row.stage)[:1]
        return {name: position for part in oldest for name, position in part.positions.items()}
    if route.rebuilds:
        depends = (manifest_of(tx, row, row.head) or {}).get("depends", [])
        first = min((epoch for _, epoch in depends), default=None)
        if first is not None:
            return _starts(tx, row, first) or {}
    starts = _starts(tx, row, settled + 1)
    if starts is None:
        # Without a plan behind it, it has read up to here, or passed over what holds no rows.
        return dict(snapshots.standing(tx, row).positions) if settled == row.head else {}
    return starts


def _starts(tx: sa.Connection, row: StageRow, epoch: int) -> dict[str, int] | None:
    """Where the ranges of an epoch's plan start, None if it has none."""
    plan = plan_of(tx, row, epoch)
    return None if plan is None else {name: int(start) for name, (start, _) in plan["ranges"].items()}


def _goal(tx: sa.Connection, row: StageRow, route: Route) -> int:
    """Up to which epoch files are to be carried."""
    if not route.captured:
        return row.head
    part = snapshots.newest_part(tx, row.stage)
    return -1 if part is None else part.epoch


def _unshipped(tx: sa.Connection, row: StageRow, safe: int, goal: int, *, layers: bool) -> list[str]:
    """Files of epochs above the safe point. A merge carries its own files before it commits, but only to the tiers
    that its stage had then."""
    table, segments = schema.layers, schema.segments
    runs = tx.execute(
        sa.select(table.c.runs).where(
            table.c.stage == row.stage,
            table.c.branch == row.branch,
            table.c.status == "live",
            table.c.last > safe,
            table.c.last <= goal,
        )
    ).scalars()
    written = tx.execute(
        sa.select(segments.c.files).where(
            segments.c.stage == row.stage,
            segments.c.branch == row.branch,
            segments.c.status == "live",
            segments.c.epoch > safe,
            segments.c.epoch <= goal,
        )
    ).scalars()
    named: list[Json] = [file for group in (*(runs if layers else ()), *written) for file in group]
    return [file["path"] for file in named]
