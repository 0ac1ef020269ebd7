"""Over how many tasks an epoch is spread; the plan records it, so that every execution of the plan is cut alike."""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.core.json import Json
from holdfast.ledger import files
from holdfast.ledger.epochs import StageRow
from holdfast.protocols.shape import tasks_for
from holdfast.protocols.watermark import Timing
from holdfast.runtime.context import Runtime


def tasks_of_epoch(
    rt: Runtime,
    tx: sa.Connection,
    row: StageRow,
    timing: Timing | None,
    rows: int,
    reached: int | None,
    before: Json,
) -> int:
    """As many as the run was told to take; else by the rows that are read, and those that the watermark closes."""
    if rt.tasks is not None:
        return rt.tasks
    cores = rt.cores.count
    tasks = tasks_for(rows, cores)
    if tasks == cores or timing is None or reached is None:
        return tasks
    return tasks_for(rows + _closing_rows(tx, row, timing, reached, before.get("watermark_us")), cores)


def _closing_rows(tx: sa.Connection, row: StageRow, timing: Timing, reached: int, last: int | None) -> int:
    """State rows of the buckets that close, at most: a key that several layers hold counts several times."""
    if not timing.emits_at_close or reached == last:
        return 0
    spine, _ = files.cover(files.live_layers(tx, row), row.head)
    first, end = timing.floor(last), timing.closing(reached) + 1
    return sum(layer.rows_from(first) - layer.rows_from(end) for layer in spine)
