"""Finds out which named files are not there, or not what they were.

Every file's length is checked; files above the disk's safe point may have lost bytes in a power cut, so their
checksums are checked too, and so are those of a file that a reader could not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from holdfast.core.json import Json
from holdfast.ledger import files, schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import Ledger
from holdfast.storage.checksums import fault
from holdfast.storage.shipper import DISK

# The id of a layer or segment, its files, and its last epoch.
Group = tuple[int, list[Json], int]


@dataclass(frozen=True)
class Losses:
    """Named layers and segments that are not whole, and why."""

    layers: list[int]
    segments: list[int]
    reasons: list[str]

    def __bool__(self) -> bool:
        return bool(self.layers or self.segments)


def inspect(ledger: Ledger, root: Path, stage: str, suspect: str | None = None) -> Losses:
    """Check all files that a stage's manifests name; `suspect` is one that a reader could not use."""
    with ledger.read() as tx:
        safe = files.safe_point(tx, stage, DISK)
        layers, segments = named_by(tx, stage)
    look = _Look(root, safe, suspect, [])
    lost_layers = [i for i, group, last in layers if not look.is_whole(group, last)]
    lost_segments = [i for i, group, epoch in segments if not look.is_whole(group, epoch)]
    return Losses(lost_layers, lost_segments, look.reasons)


def is_named(ledger: Ledger, stage: str, path: str) -> bool:
    """Whether a live layer or segment of a stage names a file."""
    with ledger.read() as tx:
        return any(
            file["path"] == path for kind in named_by(tx, stage) for _, group, _ in kind for file in group
        )


def named_by(tx: sa.Connection, stage: str) -> tuple[list[Group], list[Group]]:
    """The live layers and segments of a stage: their ids, files and last epochs."""
    layers, segments = schema.layers, schema.segments
    row = stage_row(tx, stage)
    mine = (layers.c.stage == stage, layers.c.branch == row.branch, layers.c.status == "live")
    runs = tx.execute(sa.select(layers.c.id, layers.c.runs, layers.c.last).where(*mine))
    own = (segments.c.stage == stage, segments.c.branch == row.branch, segments.c.status == "live")
    written = tx.execute(sa.select(segments.c.id, segments.c.files, segments.c.epoch).where(*own))
    return [(i, group, last) for i, group, last in runs], [(i, group, epoch) for i, group, epoch in written]


@dataclass(frozen=True)
class _Look:
    root: Path
    safe: int
    suspect: str | None
    reasons: list[str]

    def is_whole(self, group: Sequence[Json], epoch: int) -> bool:
        found = [f"{file['path']} {what}" for file in group if (what := self._fault(file, epoch))]
        self.reasons.extend(found)
        return not found

    def _fault(self, file: Json, epoch: int) -> str | None:
        suspected = file["path"] == self.suspect
        found = fault(self.root, file, deep=suspected or epoch > self.safe)
        return found or ("cannot be read" if suspected else None)
