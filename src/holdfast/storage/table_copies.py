"""Copies of the tables that streams are enriched with: one immutable file for each version that a plan names.

Invariants:

1. A copy is durable before a plan names it, under a name that is never used again; the name begins with the epoch that it
   was made for.
2. The epochs whose plans name a copy follow each other without a gap: a plan takes over the copy of the plan before it, or a
   new one. None of them is below the epoch in the name.
3. So a copy whose epoch is below the oldest plan that the ledger keeps, and that the first of the kept plans which name any
   table does not name, is named by none, nor will it be. A copy that is under way was made for an epoch above the head, and
   the oldest kept plan is not above that: it stays, whoever sweeps, also somebody who has been deposed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from holdfast.core.ids import epoch_name, new_attempt_id
from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.storage.atomic import make_dirs, write_new
from holdfast.storage.workdir import TABLES


def version_of(data: bytes) -> str:
    """The name of what a table holds: the same bytes, the same version."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def write_copy(root: Path, stage: str, table: str, epoch: int, rows: int, data: bytes) -> Json:
    """A version as the plan of an epoch will name it."""
    path = f"{TABLES}/{stage}/{epoch_name(epoch)}-{new_attempt_id()}-{table}.parquet"
    make_dirs((root / path).parent)
    write_new(root / path, data)
    facts = {"version": version_of(data), "rows": rows}
    return {"path": path, "bytes": len(data), "crc32": zlib.crc32(data), **facts}


@dataclass(frozen=True)
class NamedCopy:
    """A copy, and the first and last of the epochs whose kept plans name it."""

    stage: str
    branch: int
    first: int
    last: int
    file: Json


def named_copies(tx: sa.Connection) -> list[NamedCopy]:
    """Every copy that a kept plan names."""
    table, found = schema.plans, dict[str, NamedCopy]()
    plans = sa.select(table.c.stage, table.c.branch, table.c.epoch, table.c.body).order_by(table.c.epoch)
    for stage, branch, epoch, body in tx.execute(plans):
        for file in body.get("tables", {}).values():
            first = found[file["path"]].first if file["path"] in found else epoch
            found[file["path"]] = NamedCopy(stage, branch, first, epoch, file)
    return list(found.values())


def sweep_copies(ledger: Ledger, root: Path, mirrors: Iterable[Path], row: StageRow) -> None:
    """Unlink the copies of a stage's tables that no plan names any more.

    A mirror may hold those of another flow's stage of the same name: only what is known by its name here goes there.
    """
    found = list((root / TABLES / row.stage).glob("*.parquet"))
    if not found:
        return
    with ledger.read() as tx:
        oldest = _oldest_plan(tx, row)
        old = [path for path in found if oldest is not None and _epoch(path) < oldest]
        named = _first_named(tx, row) if old else set()
    for path in old:
        if path.name not in named:
            # The one here goes last: it is how a sweep that was cut off finds the others again.
            for place in (*mirrors, root):
                (place / path.relative_to(root)).unlink(missing_ok=True)


def _epoch(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _oldest_plan(tx: sa.Connection, row: StageRow) -> int | None:
    table = schema.plans
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    return tx.execute(sa.select(sa.func.min(table.c.epoch)).where(*mine)).scalar_one_or_none()


def _first_named(tx: sa.Connection, row: StageRow) -> set[str]:
    """The copies that the first kept plan with tables names; one that skips an epoch has none."""
    table = schema.plans
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    bodies = tx.execute(sa.select(table.c.body).where(*mine).order_by(table.c.epoch)).scalars()
    tables: Json = next((body["tables"] for body in bodies if body.get("tables")), {})
    return {Path(file["path"]).name for file in tables.values()}
