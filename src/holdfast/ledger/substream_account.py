"""The account of substreams by label: which are open, since when, and the newest of those that have ended.

It is for people and for bounds; what decides is the tracker, and this follows it in the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.ledger import schema
from holdfast.protocols.substreams import Substreams

_KNOWN_AT_ONCE = 500


def numbers(tx: Connection, scope: str) -> tuple[int, int]:
    """How many substreams of a scope are open, and how many are known at all."""
    table = schema.substreams
    mine = sa.select(sa.func.count()).where(table.c.scope == scope)
    still_open = tx.execute(mine.where(table.c.ended_ms.is_(None))).scalar_one()
    return int(still_open), int(tx.execute(mine).scalar_one())


def note(tx: Connection, scope: str, tracker: Substreams, labels: Sequence[str]) -> None:
    """Keep the account of open and ended substreams in step with the tracker."""
    table, now_ms = schema.substreams, time.time_ns() // 1_000_000
    ended = [label for label in labels if tracker.ended(label)]
    known = _known(tx, scope, labels)
    new = [label for label in labels if label not in known]
    rows = [{"scope": scope, "label": label, "since_ms": now_ms, "ended_ms": None} for label in new]
    if rows:
        tx.execute(sa.insert(table), rows)
        _check_room(tx, scope)
    again = [label for label in labels if known.get(label) is not None]
    for label in again:
        mine = (table.c.scope == scope, table.c.label == label)
        tx.execute(sa.update(table).where(*mine).values(since_ms=now_ms, ended_ms=None))
    for label in ended:
        tracker.forget(label)
        mine = (table.c.scope == scope, table.c.label == label)
        tx.execute(sa.update(table).where(*mine).values(ended_ms=now_ms))
    if ended:
        _forget_oldest(tx, scope)


def _known(tx: Connection, scope: str, labels: Sequence[str]) -> dict[str, int | None]:
    """Of labels that were seen before, when they ended."""
    table = schema.substreams
    found: dict[str, int | None] = {}
    for start in range(0, len(labels), _KNOWN_AT_ONCE):
        part = labels[start : start + _KNOWN_AT_ONCE]
        mine = (table.c.scope == scope, table.c.label.in_(part))
        found |= {
            label: at for label, at in tx.execute(sa.select(table.c.label, table.c.ended_ms).where(*mine))
        }
    return found


def _check_room(tx: Connection, scope: str) -> None:
    table = schema.substreams
    mine = (table.c.scope == scope, table.c.ended_ms.is_(None))
    number = tx.execute(sa.select(sa.func.count()).where(*mine)).scalar_one()
    if number > limits.SUBSTREAMS_OPEN_MAX:
        raise FlowError(
            f"{number:,} substreams are open, more than {limits.SUBSTREAMS_OPEN_MAX:,}",
            operation="track substreams",
            stage=scope,
            hint="`holdfast substreams --open` says what they wait for. Label coarser things, or close labels earlier.",
        )


def _forget_oldest(tx: Connection, scope: str) -> None:
    table = schema.substreams
    mine = (table.c.scope == scope, table.c.ended_ms.is_not(None))
    newest_first = (table.c.ended_ms.desc(), table.c.label)
    old = sa.select(table.c.label).where(*mine).order_by(*newest_first).offset(limits.SUBSTREAMS_ENDED_MAX)
    tx.execute(sa.delete(table).where(*mine, table.c.label.in_(old)))
