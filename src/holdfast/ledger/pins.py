"""Readers that are no members of a group keep the sweeper off the files that they read, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger


@dataclass(frozen=True)
class Pinned:
    """Rows of layers and segments that must not be condemned now."""

    layers: frozenset[int]
    segments: frozenset[int]


def pin(tx: Connection, reader: str, layers: Sequence[int], segments: Sequence[int]) -> None:
    """Keep files that are live in this transaction. A limit that has passed lets them go, whoever reads them."""
    until_ms = time.time_ns() // 1_000_000 + limits.PIN_MS_MAX
    ids = [("layer", i) for i in layers] + [("segment", i) for i in segments]
    rows = [{"reader": reader, "kind": kind, "id": i, "until_ms": until_ms} for kind, i in ids]
    if rows:
        tx.execute(sa.insert(schema.pins), rows)


def unpin(ledger: Ledger, reader: str) -> None:
    """Let go of everything that a reader has pinned."""
    with ledger.unfenced_write() as tx:
        tx.execute(sa.delete(schema.pins).where(schema.pins.c.reader == reader))


def pinned(tx: Connection) -> Pinned:
    """What is pinned now; limits that have passed do not count."""
    table = schema.pins
    now_ms = time.time_ns() // 1_000_000
    found = tx.execute(sa.select(table.c.kind, table.c.id).where(table.c.until_ms > now_ms)).all()
    return Pinned(
        frozenset(i for kind, i in found if kind == "layer"),
        frozenset(i for kind, i in found if kind == "segment"),
    )
