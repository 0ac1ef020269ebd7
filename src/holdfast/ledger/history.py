"""The epochs of a stage as the ledger remembers them: what each read, gave, kept and cost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow, known_stage
from holdfast.ledger.ledger import reading

_DIGEST_BYTES = 6


def epochs_of(work_dir: Path, stage: str, last: int) -> Json:
    """The newest `last` epochs of a stage, oldest first. Works while the flow runs."""
    with reading(work_dir) as tx:
        row = known_stage(tx, stage)
        name = tx.execute(sa.select(schema.flow.c.name)).scalar_one()
        return {"flow": name, "stage": stage, "head": row.head, "epochs": _newest(tx, row, last)}


def _newest(tx: Connection, row: StageRow, last: int) -> list[Json]:
    manifests, plans = schema.manifests, schema.plans
    planned = sa.and_(
        plans.c.stage == manifests.c.stage,
        plans.c.branch == manifests.c.branch,
        plans.c.epoch == manifests.c.epoch,
    )
    found = tx.execute(
        sa.select(
            manifests.c.epoch,
            manifests.c.committed_ms,
            manifests.c.attempt,
            manifests.c.body,
            plans.c.body.label("plan"),
        )
        .join(plans, planned, isouter=True)
        .where(manifests.c.stage == row.stage, manifests.c.branch == row.branch)
        .order_by(manifests.c.epoch.desc())
        .limit(last)
    )
    return [_epoch(*values) for values in found.all()][::-1]


def _epoch(epoch: int, committed_ms: int, attempt: str, manifest: Json, plan: Json | None) -> Json:
    return {
        "epoch": epoch,
        "committed": moment(committed_ms * 1000),
        "inputs": (plan or {}).get("ranges", {}),
        "tables": {name: file["version"] for name, file in (plan or {}).get("tables", {}).items()},
        "rows_in": manifest["rows_in"],
        "rows_out": manifest["rows_out"],
        "aside": manifest.get("counts", {}),
        "rows_skipped": manifest.get("rows_skipped", 0),
        "state_rows_lost": manifest.get("state_rows_lost", 0),
        "keys": manifest["keys"],
        "state_rows": manifest["state_rows"],
        "watermark": moment(manifest.get("watermark_us")),
        "watermark_us": manifest.get("watermark_us"),
        "seconds": manifest["seconds"],
        "operator_seconds": manifest["operator_seconds"],
        "layer_bytes": manifest.get("layer_bytes"),
        "digest": _short(manifest["digests"]),
        "attempts": manifest.get("attempts"),
        "attempt": attempt,
    }


def _short(digests: Json) -> str:
    """One digest of an epoch's digests: equal exactly if a replay would be accepted."""
    text = json.dumps(digests, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
