"""A flow's work directory made by hand: a ledger with plans and manifests, and layers on the disk, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.core.json import Json
from holdfast.ledger import epochs, files, holder
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import Commit
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.merge import merge_runs
from holdfast.state.schema import StateSchema
from holdfast.storage.workdir import attempt_directory
from registered import register_stage

ALL = (0, 4096)
STATE = StateSchema(pa.schema([("k0", pa.string())]), pa.schema([("v0", pa.float64()), ("v1", pa.int64())]))
VIEW = StateView(
    STATE,
    (
        ViewColumn("user", "string", pa.string(), ("k0",)),
        ViewColumn("window_end", "timestamp", pa.timestamp("us", "UTC"), ("_bucket",)),
        ViewColumn("mean", "double", pa.float64(), ("v0", "v1"), "avg"),
    ),
    keeps_us=0,
)


class WrittenState:
    """A stage `means` whose rows are a user's sum and count, by bucket."""

    def __init__(self, root: Path, view: Json | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.ledger = Ledger(root)
        self.generation = holder.take(self.ledger, "written")
        register_stage(
            self.ledger,
            self.generation,
            "means",
            {"operator": "means"},
            ["source:in"],
            view or VIEW.to_json(),
        )

    def discover(self, *rows: int) -> None:
        """Items of the source, by their rows."""
        found = [Item(f"file-{n}-{count}", count, 10, {}) for n, count in enumerate(rows)]
        ledger_inputs.add_items(self.ledger, self.generation, {"in": found})

    def commit(
        self, users: Mapping[str | None, tuple[float, int]], bucket: int = 0, watermark_us: int | None = None
    ) -> None:
        """One epoch that reads one item and changes these users."""
        with self.ledger.read() as tx:
            row = epochs.stage_row(tx, "means")
        epoch = row.head + 1
        plan = {"ranges": {"source:in": [epoch, epoch + 1]}, "rows": len(users)}
        row, attempt = epochs.record_plan(self.ledger, row, plan)
        runs = self._layer(attempt, users, bucket)
        layer = {
            "rows": sum(run["rows"] for run in runs),
            "bytes": sum(run["bytes"] for run in runs),
            "runs": runs,
        }
        manifest = {
            "rows_in": len(users),
            "rows_out": {"out": len(users), "late": 1},
            "keys": len(users),
            "state_rows": len(users),
            "digests": {"0": [str(epoch), {}]},
            "seconds": 0.25,
            "operator_seconds": 0.01,
            "layer_bytes": layer["bytes"],
            "attempts": 1,
            "watermark_us": watermark_us,
            "counts": {"late": 1},
            "totals": {"late": epoch + 1},
        }
        moves = {"source:in": (epoch, epoch + 1)}
        epochs.commit_epoch(self.ledger, Commit(row, epoch, attempt, manifest, layer, {}, moves))

    def _layer(self, attempt: str, users: Mapping[str | None, tuple[float, int]], bucket: int) -> list[Json]:
        rows = len(users)
        hashes = np.array([hash_of(user) for user in users], np.int64)
        sums, counts = zip(*users.values(), strict=True)
        changes = pa.table(
            [
                np.full(rows, bucket),
                hashes,
                np.ones(rows, np.bool_),
                pa.array(list(users), pa.string()),
                pa.array(sums, pa.float64()),
                pa.array(counts, pa.int64()),
            ],
            schema=STATE.changes,
        )
        prefix = f"{attempt_directory('means', attempt)}/layer"
        return [dict(run.to_json()) for run in write_layer(self.root, prefix, changes, STATE, ALL)]

    def merge(self, first: int, last: int) -> None:
        """Merge layers into one, as the merger would; their files stay."""
        with self.ledger.read() as tx:
            row = epochs.stage_row(tx, "means")
            inputs = [f for f in files.live_layers(tx, row) if first <= f.first and f.last <= last]
        infos = [LayerInfo.from_json({"first": f.first, "last": f.last, "runs": f.runs}) for f in inputs]  # type: ignore[typeddict-item]
        attempt = epochs.open_attempt(self.ledger, row, "merge", last)
        merged = merge_runs(self.root, STATE, infos, ALL, bottom=first == 0, floor=None)
        prefix = f"{attempt_directory('means', attempt)}/merge"
        runs = [dict(run.to_json()) for run in write_layer(self.root, prefix, merged, STATE, ALL)]
        layer = {"rows": merged.num_rows, "bytes": sum(r["bytes"] for r in runs), "runs": runs}
        files.commit_merge(self.ledger, row, attempt, inputs, layer)

    def sweep(self, first: int, last: int) -> None:
        """Condemn and unlink the layers of single epochs that lie in a merged range."""
        with self.ledger.read() as tx:
            row = epochs.stage_row(tx, "means")
            gone = [f for f in files.live_layers(tx, row) if f.first == f.last and first <= f.first <= last]
        files.condemn(self.ledger, row, [f.id for f in gone], [])
        for layer in gone:
            for run in layer.runs:
                (self.root / run["path"]).unlink()
        files.forget(self.ledger, self.generation, [f.id for f in gone], [])


def hash_of(user: str | None) -> int:
    """Any hash will do: only its top bits and its order matter to the layers."""
    return (sum(map(ord, user or "")) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)) - (1 << 63)
