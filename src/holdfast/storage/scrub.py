"""Checks every file that a work directory's ledger names, on every tier, against its checksums.

It only reads, and may run beside the flow: a file that the flow lets go of meanwhile is no fault. What is wrong can be
marked as lost, as any reader would that comes upon it; then the flow makes it again. A file that cannot be made again
is left as it is, so that the flow stops only if it has to read it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from holdfast.core.json import Json
from holdfast.ledger import files, schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import Ledger, reading
from holdfast.storage.atomic import copy_whole
from holdfast.storage.checksums import fault
from holdfast.storage.shipper import make_durable
from holdfast.storage.table_copies import named_copies

HERE = "work directory"
TABLE = "table"

# What becomes of a damaged file.
MIRROR, REPLAY, COPY, NOTHING = "mirror", "replay", "copy", "none"


@dataclass(frozen=True)
class Named:
    """A file that the ledger names, and whose."""

    stage: str
    branch: int
    kind: str  # layer, segment or table
    id: int  # of a layer or segment, in the ledger; of the copy of a table, made of its name
    first: int  # epochs
    last: int
    file: Json


@dataclass(frozen=True)
class Finding:
    """A file that is not what was written."""

    tier: str
    path: str
    stage: str
    kind: str
    first: int
    last: int
    wrong: str
    repair: str

    def to_json(self) -> Json:
        """Plain numbers and strings."""
        return asdict(self)


@dataclass(frozen=True)
class Scrubbed:
    """What a look at all files has found."""

    files: int
    bytes: int
    unchecked: int  # runs of an older Holdfast, which nothing checks when they are read
    ledger: str | None  # what is wrong with the ledger
    findings: tuple[Finding, ...]
    named: tuple[Named, ...]  # that the findings are about


def scrub(
    root: Path, mirrors: Mapping[str, Path], progress: Callable[[int, int], None] = lambda done, total: None
) -> Scrubbed:
    """Check all files; `progress` is told bytes done and bytes in all."""
    with reading(root) as tx:
        ledger = _ledger_fault(tx)
        named = list(_named(tx))
    copies = [(tier, place, one) for one in named for tier, place in _places(root, mirrors, one)]
    total, done, wrong = sum(one.file["bytes"] for _, _, one in copies), 0, []
    for tier, place, one in copies:
        what = fault(place, one.file, deep=True)
        if what:
            wrong.append((tier, one, what))
        done += one.file["bytes"]
        progress(done, total)
    with reading(root) as tx:
        live = {(one.kind, one.id) for one in _named(tx)}
        still = [(tier, one, what) for tier, one, what in wrong if (one.kind, one.id) in live]
        damaged = {(tier, one.file["path"]) for tier, one, _ in still}
        found = [
            Finding(tier, one.file["path"], one.stage, one.kind, one.first, one.last, what, repair)
            for tier, one, what in still
            for repair in [_remedy(tx, root, mirrors, tier, one, damaged)]
        ]
    unchecked = sum(one.kind == "layer" and not one.file.get("checksums_at") for one in named)
    return Scrubbed(len(copies), total, unchecked, ledger, tuple(found), tuple(one for _, one, _ in still))


def mend(root: Path, mirrors: Mapping[str, Path], scrubbed: Scrubbed) -> int:
    """Mark damaged files as lost where the flow can make them again, and copy whole ones to mirrors; how many."""
    mended = 0
    for finding in scrubbed.findings:
        if finding.repair == COPY:
            copy_whole(root / finding.path, mirrors[finding.tier] / finding.path)
            make_durable(mirrors[finding.tier], [finding.path])
            mended += 1
    ledger = Ledger(root)
    try:
        for stage in sorted({finding.stage for finding in scrubbed.findings}):
            mended += _mark(ledger, stage, scrubbed)
    finally:
        ledger.close()
    return mended


def _mark(ledger: Ledger, stage: str, scrubbed: Scrubbed) -> int:
    with ledger.read() as tx:
        row = stage_row(tx, stage)
    lost = [
        (one, finding)
        for one, finding in zip(scrubbed.named, scrubbed.findings, strict=True)
        if one.stage == stage
        and one.branch == row.branch
        and finding.tier == HERE
        and finding.repair in (MIRROR, REPLAY)
        and one.kind != TABLE  # which is brought back when it is needed
    ]
    if lost:
        ids = {kind: sorted({one.id for one, _ in lost if one.kind == kind}) for kind in ("layer", "segment")}
        why = "; ".join(f"{finding.path} {finding.wrong}" for _, finding in lost[:20])
        files.mark_lost(ledger, row, ids["layer"], ids["segment"], f"found by scrub: {why}")
    return len(lost)


def _named(tx: sa.Connection) -> Iterator[Named]:
    layers, segments = schema.layers, schema.segments
    of_state = sa.select(
        layers.c.stage, layers.c.branch, layers.c.id, layers.c.first, layers.c.last, layers.c.runs
    ).where(layers.c.status == "live")
    for stage, branch, number, first, last, runs in tx.execute(of_state):
        yield from (Named(stage, branch, "layer", number, first, last, run) for run in runs)
    of_ports = sa.select(
        segments.c.stage, segments.c.branch, segments.c.id, segments.c.epoch, segments.c.files
    ).where(segments.c.status == "live")
    for stage, branch, number, epoch, found in tx.execute(of_ports):
        yield from (Named(stage, branch, "segment", number, epoch, epoch, file) for file in found)
    for copy in named_copies(tx):
        number = zlib.crc32(copy.file["path"].encode())
        yield Named(copy.stage, copy.branch, TABLE, number, copy.first, copy.last, copy.file)


def _places(root: Path, mirrors: Mapping[str, Path], one: Named) -> Iterator[tuple[str, Path]]:
    """Where a file is: in the work directory, and in those mirrors that it has reached."""
    yield HERE, root
    for tier, mirror in mirrors.items():
        if (mirror / one.file["path"]).exists():
            yield tier, mirror


def _remedy(
    tx: sa.Connection,
    root: Path,
    mirrors: Mapping[str, Path],
    tier: str,
    one: Named,
    damaged: set[tuple[str, str]],
) -> str:
    """How a damaged file is made whole; whether the input of a replay is still there is found out by the replay."""
    path = one.file["path"]
    if tier != HERE:
        return NOTHING if (HERE, path) in damaged else COPY
    if any((mirror / path).exists() and (name, path) not in damaged for name, mirror in mirrors.items()):
        return MIRROR
    return REPLAY if one.kind != TABLE and _has_plans(tx, one) else NOTHING


def _has_plans(tx: sa.Connection, one: Named) -> bool:
    row = replace(stage_row(tx, one.stage), branch=one.branch)
    oldest = files.oldest_manifest(tx, row)
    return oldest is not None and oldest <= one.first


def _ledger_fault(tx: sa.Connection) -> str | None:
    """What SQLite finds wrong with its own file; a server looks after its pages itself."""
    if tx.dialect.name != "sqlite":
        return None
    said: Sequence[str] = list(tx.exec_driver_sql("PRAGMA integrity_check(1)").scalars())
    return None if said == ["ok"] else "; ".join(said)
