"""A stage's state at a committed epoch, for whoever only looks: from the ledger and the layers, without Spark.

Invariants: what is read is the state at one epoch, whatever layers hold it; at most a bounded number of rows is in
memory at a time. A reader does not pin: where a merge and the sweeper replace a file before it is opened, the look
starts over on the layers that hold the state then, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.core.errors import LedgerError, StorageError
from holdfast.core.json import Json
from holdfast.ledger import files, schema
from holdfast.ledger.epochs import StageRow, known_stage, manifest_of
from holdfast.ledger.files import LayerRow
from holdfast.ledger.ledger import reading
from holdfast.spark.operators.view import StateView
from holdfast.state.layer import LayerInfo
from holdfast.state.merge import merge_ranges
from holdfast.state.run import LostFileError
from holdfast.state.spine import Spine

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Snapshot:
    """The state of a stage at an epoch. It can be pickled into tasks."""

    root: Path
    flow: str
    stage: str
    epoch: int  # -1 before the first
    watermark_us: int | None
    view: StateView
    layers: tuple[LayerInfo, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Ranges of slots that can be read one at a time."""
        return merge_ranges(self.layers, limits.STATE_READ_ROWS_MAX)

    def read(self, slots: tuple[int, int]) -> pa.Table:
        """The rows of a range of slots as users know them."""
        floor = self.view.floor(self.watermark_us)
        return self.view.table(Spine(self.root, self.view.state, self.layers, slots, floor).rows())

    def rows(self, limit: int | None = None) -> Iterator[pa.Table]:
        """The rows, at most `limit` of them, a bounded table at a time."""
        left = limit
        for slots in self.ranges:
            if left is not None and left <= 0:
                return
            found = self.read(slots).slice(0, left)
            left = None if left is None else left - found.num_rows
            yield found

    def only(self, columns: Sequence[str]) -> Snapshot:
        """The same rows with these columns alone."""
        return replace(self, view=self.view.only(columns))


def look(
    work_dir: Path, stage: str, epoch: int | None, use: Callable[[Snapshot], Answer]
) -> tuple[Snapshot, Answer]:
    """Use the state of a stage at an epoch (the newest, unless told); again where its files were swept meanwhile."""
    snapshot = snapshot_of(work_dir, stage, epoch)
    for _ in range(limits.STATE_READ_TRIES_MAX):
        try:
            return snapshot, use(snapshot)
        except LostFileError as error:
            before, snapshot = snapshot, snapshot_of(work_dir, stage, epoch)
            if any(run.path == error.path for layer in snapshot.layers for run in layer.runs):
                raise _lost(before, f"{error.path} {error.reason}") from error
    raise StorageError(
        f"the files of the state were replaced {limits.STATE_READ_TRIES_MAX} times while they were read",
        operation="read state",
        stage=stage,
        heals=True,
    )


def snapshot_of(work_dir: Path, stage: str, epoch: int | None) -> Snapshot:
    """What the ledger says of a stage's state at an epoch."""
    with reading(work_dir) as tx:
        row = known_stage(tx, stage)
        flow = tx.execute(sa.select(schema.flow.c.name)).scalar_one()
        view = StateView.from_json(_view(tx, row))
        at = row.head if epoch is None else epoch
        layers = files.live_layers(tx, row)
        manifest = manifest_of(tx, row, at)
    spine, reached = files.cover(layers, at)
    if at > row.head or at < min(row.head, 0):
        raise _no_such_epoch(row, at)
    if reached != at + 1 or (manifest is None and at >= 0):
        raise _gone(row, at, layers)
    infos = [LayerInfo.from_json({"first": s.first, "last": s.last, "runs": s.runs}) for s in spine]  # type: ignore[typeddict-item]
    return Snapshot(
        work_dir.resolve(), flow, stage, at, (manifest or {}).get("watermark_us"), view, tuple(infos)
    )


def _view(tx: Connection, row: StageRow) -> Json:
    kept = tx.execute(
        sa.select(schema.stages.c.state_schema).where(schema.stages.c.stage == row.stage)
    ).scalar_one()
    if kept is None:
        raise LedgerError(
            "the stage keeps no state",
            operation="read state",
            stage=row.stage,
            hint="Look at its sink instead.",
        )
    table = schema.state_views
    known = sa.inspect(tx).has_table(table.name)
    found: Json | None = (
        tx.execute(sa.select(table.c.body).where(table.c.stage == row.stage)).scalar_one_or_none()
        if known
        else None
    )
    if found is None:
        raise LedgerError(
            "how the stage's state reads is not in the ledger: an older Holdfast wrote it last",
            operation="read state",
            stage=row.stage,
            hint="Run the flow once with this version: `holdfast run FLOW --until-idle`.",
        )
    return found


def _no_such_epoch(row: StageRow, epoch: int) -> LedgerError:
    newest = f"the newest epoch is {row.head}" if row.head >= 0 else "no epoch is committed yet"
    return LedgerError(f"there is no epoch {epoch}: {newest}", operation="read state", stage=row.stage)


def _gone(row: StageRow, epoch: int, layers: Sequence[LayerRow]) -> StorageError:
    if epoch == row.head:
        return StorageError(
            "files of the newest state are lost",
            operation="read state",
            stage=row.stage,
            epoch=epoch,
            hint="Run the flow: it makes them again from its recorded plans.",
        )
    ends = sorted({layer.last for layer in layers if files.cover(layers, layer.last)[1] == layer.last + 1})
    return StorageError(
        "the state at this epoch is no longer kept: its layers were merged into later ones",
        operation="read state",
        stage=row.stage,
        epoch=epoch,
        hint=f"Still kept: {', '.join(map(str, ends))}.",
    )


def _lost(snapshot: Snapshot, what: str) -> StorageError:
    return StorageError(
        f"a file of the state is lost: {what}",
        operation="read state",
        stage=snapshot.stage,
        epoch=snapshot.epoch,
        hint="Run the flow: it makes the file again from its recorded plan.",
    )
