"""What the ledger says about a flow, in one consistent read. Works while no process runs the flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.ledger import readers, schema, snapshot_report
from holdfast.ledger.epochs import manifest_of, open_plan, stage_row
from holdfast.ledger.files import cover, live_layers
from holdfast.ledger.groups import FAILOVER
from holdfast.ledger.lag import Lag, lag_of, lags
from holdfast.ledger.ledger import reading
from holdfast.ledger.process import Process
from holdfast.ledger.unread import all_unread

_EVENTS_SHOWN = 10

# Kinds of events that happen all the time, and of which the newest say nothing.
ROUTINE = ("merged",)
_REFUSED_SHOWN = 10


def status(work_dir: Path) -> Json:
    """Holder, stages, cursors, sinks and the newest events of a flow."""
    with reading(work_dir) as tx:
        flow = tx.execute(sa.select(schema.flow)).one()
        held = Process(**flow.holder) if flow.holder else None
        waiting = lags(tx)
        return {
            "flow": flow.name,
            "generation": flow.generation,
            "holder": flow.holder,
            "running": held is not None and held.lives(),
            "stages": {name: _stage(tx, name, waiting) for name in _names(tx)},
            "cursors": _cursors(tx, waiting),
            "unread": [asdict(one) for one in all_unread(tx, _consumers(waiting))],
            "sources": _sources(tx),
            "snapshots": snapshot_report.standing(tx),
            "failovers": failovers(tx),
            "events": _events(tx),
            "routine": _routine(tx),
        }


def stage_names(work_dir: Path) -> list[str]:
    """The stages that a work directory knows."""
    with reading(work_dir) as tx:
        return _names(tx)


def _names(tx: Connection) -> list[str]:
    return list(tx.execute(sa.select(schema.stages.c.stage).order_by(schema.stages.c.stage)).scalars())


def _cursors(tx: Connection, waiting: Mapping[tuple[str, str], Lag]) -> list[Json]:
    table = schema.cursors
    found = tx.execute(sa.select(table).order_by(table.c.consumer, table.c.input)).mappings()
    return [{**row, "lag": asdict(waiting[row["consumer"], row["input"]])} for row in found]


def _consumers(waiting: Mapping[tuple[str, str], Lag]) -> list[tuple[str, str]]:
    """Stages and sinks: who reads from outside does so when it likes."""
    return [(consumer, name) for consumer, name in waiting if not consumer.startswith(readers.PREFIX)]


def _stage(tx: Connection, name: str, waiting: Mapping[tuple[str, str], Lag]) -> Json:
    row = stage_row(tx, name)
    spine, _ = cover(live_layers(tx, row), row.head)
    last = manifest_of(tx, row, row.head) or {}
    tiers = tx.execute(
        sa.select(schema.tiers.c.tier, schema.tiers.c.safe).where(schema.tiers.c.stage == name)
    )
    segments = schema.segments
    kept = tx.execute(
        sa.select(sa.func.count(), sa.func.sum(segments.c.rows), sa.func.sum(segments.c.bytes)).where(
            segments.c.stage == name, segments.c.status == "live"
        )
    ).one()
    return {
        "epoch": row.head,
        "branch": row.branch,
        "generation": row.generation,
        "lag": asdict(lag_of(waiting, name)),
        "open_plan": open_plan(tx, row) is not None,
        "state_rows": last.get("state_rows", 0),
        "state_bytes": sum(layer.bytes for layer in spine),
        "layers": len(spine),
        "runs": sum(len(layer.runs) for layer in spine),
        "channel": {"epochs": kept[0], "rows": int(kept[1] or 0), "bytes": int(kept[2] or 0)},
        "watermark": moment(last.get("watermark_us")),
        "watermark_us": last.get("watermark_us"),
        "aside": last.get("totals", {}),
        "last_epoch_rows": last.get("rows_in", 0),
        "last_epoch_seconds": last.get("seconds"),
        "safe": {"memory": row.head, **{tier: safe for tier, safe in tiers}},
    }


def _sources(tx: Connection) -> Json:
    table = schema.source_items
    lost = sa.func.sum(table.c.body["lost_rows"].as_integer())
    found = tx.execute(
        sa.select(
            table.c.source, sa.func.count(), sa.func.sum(table.c.rows), sa.func.sum(table.c.bytes), lost
        )
        .group_by(table.c.source)
        .order_by(table.c.source)
    )
    return {
        name: {
            "items": items,
            "rows": int(rows or 0),
            "bytes": int(size),
            "lost_rows": int(gone or 0),
            "refused": _refused(tx, name),
        }
        for name, items, rows, size, gone in found.all()
    }


def _refused(tx: Connection, source: str) -> Json:
    """Items that cannot be read and were set aside: how many, and why the newest were."""
    table = schema.source_items
    reason = table.c.body["refused"].as_string()
    refused = sa.select(table.c.identity, reason).where(table.c.source == source, reason.is_not(None))
    newest = tx.execute(refused.order_by(table.c.ordinal.desc()).limit(_REFUSED_SHOWN))
    number = tx.execute(sa.select(sa.func.count()).select_from(refused.subquery())).scalar_one()
    return {"items": number, "newest": {identity: why for identity, why in newest}}


def failovers(tx: Connection) -> Json:
    """How often primaries were replaced, as far as it is remembered, and the newest with their groups and reasons."""
    table = schema.events
    mine = table.c.kind == FAILOVER
    newest = tx.execute(sa.select(table).where(mine).order_by(table.c.seq.desc()).limit(_EVENTS_SHOWN)).all()
    return {
        "count": tx.execute(sa.select(sa.func.count()).select_from(table).where(mine)).scalar_one(),
        "newest": [
            {
                "at": moment(row.at_ms * 1000),
                "group": row.reason.partition(": ")[0],
                "generation": row.generation,
                "reason": row.reason.partition(": ")[2],
            }
            for row in reversed(newest)
        ],
    }


def _events(tx: Connection) -> list[Json]:
    """The newest, and further back the newest that are no routine: merges do not push a fail-over out of sight."""
    table = schema.events
    newest = sa.select(table).order_by(table.c.seq.desc()).limit(_EVENTS_SHOWN)
    seldom = (
        sa.select(table).where(table.c.kind.not_in(ROUTINE)).order_by(table.c.seq.desc()).limit(_EVENTS_SHOWN)
    )
    found = {row["seq"]: dict(row) for query in (newest, seldom) for row in tx.execute(query).mappings()}
    return [found[seq] for seq in sorted(found)]


def _routine(tx: Connection) -> Json:
    """By kind, how often what happens all the time has happened, as far as it is remembered, and when last."""
    table = schema.events
    counted = sa.select(table.c.kind, sa.func.count(), sa.func.max(table.c.at_ms)).where(
        table.c.kind.in_(ROUTINE)
    )
    return {
        kind: {"count": count, "last": moment(int(at_ms) * 1000)}
        for kind, count, at_ms in tx.execute(counted.group_by(table.c.kind)).all()
    }
