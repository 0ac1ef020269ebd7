"""Finds out which named files are not there, or not what they were.

Every file's length is checked; files above the disk's safe point may have lost bytes in a power cut, so
their checksums are checked too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import sqlalchemy as sa

from holdfast.core.json import Json
from holdfast.ledger import files, schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import Ledger
from holdfast.storage.shipper import DISK


@dataclass(frozen=True)
class Losses:
    """Named layers and segments that are not whole, and why."""

    layers: list[int]
    segments: list[int]
    reasons: list[str]

    def __bool__(self) -> bool:
        return bool(self.layers or self.segments)


def inspect(ledger: Ledger, root: Path, stage: str) -> Losses:
    """Check all files that a stage's manifests name."""
    layers, segments = schema.layers, schema.segments
    with ledger.read() as tx:
        row = stage_row(tx, stage)
        safe = files.safe_point(tx, stage, DISK)
        mine = (layers.c.stage == stage, layers.c.branch == row.branch, layers.c.status == "live")
        runs = tx.execute(sa.select(layers.c.id, layers.c.runs, layers.c.last).where(*mine)).all()
        own = (segments.c.stage == stage, segments.c.branch == row.branch, segments.c.status == "live")
        written = tx.execute(sa.select(segments.c.id, segments.c.files, segments.c.epoch).where(*own)).all()
    reasons: list[str] = []
    lost_layers = [i for i, group, last in runs if not _whole(root, group, last > safe, reasons)]
    lost_segments = [i for i, group, epoch in written if not _whole(root, group, epoch > safe, reasons)]
    return Losses(lost_layers, lost_segments, reasons)


def fault(root: Path, file: Json, *, deep: bool) -> str | None:
    """What is wrong with a file, None if nothing."""
    path = root / file["path"]
    try:
        size = path.stat().st_size
    except OSError:
        return "is missing"
    if size != file["bytes"]:
        return f"has {size} bytes instead of {file['bytes']}"
    if deep and size and _crc32(path) != file["crc32"]:
        return "has another checksum"
    return None


def _whole(root: Path, group: Sequence[Json], deep: bool, reasons: list[str]) -> bool:
    faults = [(file["path"], fault(root, file, deep=deep)) for file in group]
    reasons += [f"{path} {what}" for path, what in faults if what]
    return not any(what for _, what in faults)


def _crc32(path: Path) -> int:
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
        return zlib.crc32(mapped)
