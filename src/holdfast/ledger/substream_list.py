"""Substreams as a person asks for them: which are open, what they wait for, which have ended and when."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.ledger import schema
from holdfast.ledger.ledger import reading
from holdfast.ledger.substreams import trackers
from holdfast.protocols.substreams import Waiting


def substreams(work_dir: Path, which: str | None, limit: int) -> Json:
    """The substreams of a flow, the newest last; `which` is "open", "closed" or None for both.

    Works while the flow runs. A ledger whose flow never had any says so by having none.
    """
    with reading(work_dir) as tx:
        name = tx.execute(sa.select(schema.flow.c.name)).scalar_one()
        if not sa.inspect(tx).has_table(schema.substreams.name):
            return {"flow": name, "open": 0, "closed": 0, "substreams": []}
        waits = _waits(tx)
        return {
            "flow": name,
            "open": len(waits),
            "closed": _closed(tx),
            "substreams": [_row(row, waits) for row in _newest(tx, which, limit)],
        }


def _newest(tx: Connection, which: str | None, limit: int) -> list[Json]:
    table = schema.substreams
    chosen = sa.select(table)
    if which is not None:
        ended = table.c.ended_ms
        chosen = chosen.where(ended.is_(None) if which == "open" else ended.is_not(None))
    order = (table.c.since_ms.desc(), table.c.scope.desc(), table.c.label.desc())
    found = tx.execute(chosen.order_by(*order).limit(limit)).mappings()
    return [dict(row) for row in found][::-1]


def _closed(tx: Connection) -> int:
    table = schema.substreams
    ended = sa.select(sa.func.count()).where(table.c.ended_ms.is_not(None))
    return int(tx.execute(ended).scalar_one())


def _waits(tx: Connection) -> dict[tuple[str, str], Waiting]:
    scopes = tx.execute(sa.select(schema.substream_scopes.c.scope)).scalars()
    return {
        (scope, label): shard.waits_for(label)
        for scope in scopes
        for shard in trackers(tx, scope)
        for label in shard.open_labels()
    }


def _row(row: Json, waits: dict[tuple[str, str], Waiting]) -> Json:
    waiting = waits.get((row["scope"], row["label"]), Waiting())
    return {
        "label": row["label"],
        "labelled_by": row["scope"],
        "state": "open" if row["ended_ms"] is None else "closed",
        "since": moment(row["since_ms"] * 1000),
        "ended": None if row["ended_ms"] is None else moment(row["ended_ms"] * 1000),
        "not_closed_by": [node.stage for node in waiting.sources],
        "in_flight": waiting.messages,
        "held_by": [node.stage for node in waiting.holders],
    }
