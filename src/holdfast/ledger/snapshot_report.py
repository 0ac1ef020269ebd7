"""What the ledger says of snapshots to whoever looks, each in one consistent read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.ledger import inputs, schema, snapshots
from holdfast.ledger.asked_snapshots import find, kept_numbers
from holdfast.ledger.groups import heads
from holdfast.ledger.ledger import reading
from holdfast.ledger.returning import those_ahead
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols.snapshots import Region, channel_state, failed_in_a_row


def listed(work_dir: Path) -> Json:
    """All snapshots that are remembered, the newest last."""
    with reading(work_dir) as tx:
        found = snapshots.all_snapshots(tx) if snapshots.are_known(tx) else []
        keep = kept_numbers(found)
        return {"flow": _flow(tx), "snapshots": [_facts(one, one.number in keep) for one in found]}


def shown(work_dir: Path, which: str) -> Json:
    """One snapshot with all its parts."""
    with reading(work_dir) as tx:
        one = find(tx, which)
        found = snapshots.all_snapshots(tx)
        complete = [other.number for other in found if other.is_complete]
        is_kept = one.number in kept_numbers(found)
        return {
            "flow": _flow(tx),
            **_facts(one, is_kept),
            "needed_by": _needed_by(one, is_kept, complete),
            "parts": {stage: _part(tx, one, stage) for stage in sorted(one.parts)},
            "ahead": [
                {"consumer": who.consumer, "stage": who.stage, "had": who.had, "covered": who.covered}
                for who in (those_ahead(tx, one) if one.is_complete else ())
            ],
        }


def one_of(work_dir: Path, number: int) -> Snapshot | None:
    """A snapshot as it is now; None if it is forgotten."""
    with reading(work_dir) as tx:
        return next((one for one in snapshots.all_snapshots(tx) if one.number == number), None)


def facts_of(work_dir: Path, number: int) -> Json:
    """What `listed` says of one snapshot."""
    return next(facts for facts in listed(work_dir)["snapshots"] if facts["number"] == number)


def standing(tx: Connection) -> Json | None:
    """Where a flow with a region stands: its last complete snapshot, and what a failure would undo."""
    region = sorted(snapshots.region(tx)) if snapshots.are_known(tx) else []
    if not region:
        return None
    found = snapshots.all_snapshots(tx)
    last = snapshots.last_complete(tx, region)
    now, head = time.time_ns() // 1_000_000, heads(tx)
    return {
        "last": None if last is None else _facts(last, True),
        "age_seconds": None if last is None else _seconds(last.committed_ms, now),
        "failed_in_a_row": failed_in_a_row([(one.status, one.to_blame) for one in found]),
        "under_way": [one.number for one in found if one.status in ("asked", "preparing")],
        "would_undo": {} if last is None else {s: head[s] - last.parts[s].epoch for s in region},
    }


def _facts(one: Snapshot, is_kept: bool) -> Json:
    return {
        "number": one.number,
        "name": one.name,
        "status": one.status,
        "mode": one.mode or None,
        "asked": one.asked,
        "kept": is_kept,
        "begun": _moment(one.begun_ms),
        "committed": _moment(one.committed_ms),
        "seconds": _seconds(one.begun_ms, one.committed_ms),
        "bytes": sum(one.bytes.values()) if one.is_complete else None,
        "epochs": {stage: part.epoch for stage, part in sorted(one.parts.items())},
        "reason": one.reason,
    }


def _part(tx: Connection, one: Snapshot, stage: str) -> Json:
    part = one.parts[stage]
    return {
        "epoch": part.epoch,
        "positions": dict(sorted(part.positions.items())),
        "in_flight": {
            name: {"epochs": [start, stop], "rows": inputs.rows_between(tx, name, start, stop)}
            for (reader, name), (start, stop) in channel_state(_region(one), one.parts).items()
            if reader == stage
        },
        "bytes": one.bytes[stage] if one.is_complete else None,
    }


def _region(one: Snapshot) -> Region:
    """The stages of a snapshot with their inputs; an input that none of them writes comes from outside."""
    return {
        stage: {name: _producer(one, name) for name in part.positions} for stage, part in one.parts.items()
    }


def _producer(one: Snapshot, name: str) -> str | None:
    kind, _, rest = name.partition(":")
    stage = rest.rpartition(".")[0]
    return stage if kind == "channel" and stage in one.parts else None


def _needed_by(one: Snapshot, is_kept: bool, complete: Sequence[int]) -> list[str]:
    if not is_kept:
        return []
    asked = ["whoever asked for it, until it is deleted"] if one.asked else []
    newest = ["the flow: a failure returns to it"] if one.number == max(complete) else []
    return newest + asked


def _flow(tx: Connection) -> str:
    return str(tx.execute(sa.select(schema.flow.c.name)).scalar_one())


def _moment(ms: int | None) -> str | None:
    return None if ms is None else moment(ms * 1_000)


def _seconds(begun_ms: int | None, ended_ms: int | None) -> float | None:
    """The wall clock may have been set back in between."""
    return None if begun_ms is None or ended_ms is None else max(0, ended_ms - begun_ms) / 1000
