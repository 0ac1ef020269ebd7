"""Readers of channels from outside the flow: what is kept for them, and for how long.

A reader with a name has a cursor like any consumer: what it has yet to read is not trimmed, until it is forgotten. One
without a name pins what it is about to read, for a limited time, and takes what is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError, StorageError
from holdfast.ledger import inputs, schema, snapshots
from holdfast.ledger.epochs import StageRow, known_stage
from holdfast.ledger.inputs import Segment
from holdfast.ledger.ledger import Ledger, reading

PREFIX = "reader:"

# How the names begin under which readers outside the flow pin files.
PINS = "format-"


def enrol(tx: Connection, name: str, channel: str, epoch: int) -> None:
    """Keep a channel for a reader from an epoch on; where it was before does not count."""
    forget(tx, name, channel)
    values = {"consumer": f"{PREFIX}{name}", "input": channel, "processed": epoch, "needed": epoch}
    tx.execute(sa.insert(schema.cursors).values(values))


def advance(tx: Connection, name: str, channel: str, epoch: int) -> None:
    """A reader has done with what lies below an epoch. One that was forgotten stays forgotten."""
    table = schema.cursors
    tx.execute(
        sa.update(table)
        .where(table.c.consumer == f"{PREFIX}{name}", table.c.input == channel, table.c.needed < epoch)
        .values(processed=epoch, needed=epoch)
    )


def forget(tx: Connection, name: str, channel: str | None = None) -> int:
    """Keep nothing more for a reader, of one channel or of any; how many it had."""
    table = schema.cursors
    mine = [table.c.consumer == f"{PREFIX}{name}", *([table.c.input == channel] if channel else [])]
    return int(tx.execute(sa.delete(table).where(*mine)).rowcount)


def outlet(tx: Connection, stage: str) -> StageRow:
    """A stage as readers see it: in a region up to what a snapshot covers, as the rest may be undone."""
    row = known_stage(tx, stage)
    return replace(row, head=snapshots.released(tx, row)) if snapshots.are_known(tx) else row


def kept_segments(tx: Connection, stage: str, port: str, start: int, stop: int) -> list[Segment]:
    """The segments of committed epochs, without a gap; refused where some were trimmed."""
    row = known_stage(tx, stage)
    held = [epoch for epoch, rows in inputs.rows_written(tx, stage, port, start, stop).items() if rows]
    found = inputs.segments(tx, stage, port, start, stop)
    if start < _oldest(tx, row) or set(held) - {segment.epoch for segment in found}:
        raise StorageError(
            f"epochs of channel {stage}.{port} from {start} on were trimmed: "
            f"the first that is kept is {first_kept(tx, row, port)}",
            operation="read channel",
            stage=stage,
            epoch=start,
            hint="What every consumer has read is not kept. Begin later, or read with option 'reader', for which it is.",
        )
    lost = [segment.epoch for segment in found if segment.status == "lost"]
    if lost:
        raise StorageError(
            "a segment is lost",
            operation="read channel",
            stage=stage,
            epoch=lost[0],
            hint="Run the flow: it makes the file again from its recorded plan.",
        )
    return found


def first_kept(tx: Connection, row: StageRow, port: str) -> int:
    """The epoch from which on a channel is there without a gap; the one after the head if it is not at all."""
    stop = row.head + 1
    held = {epoch for epoch, rows in inputs.rows_written(tx, row.stage, port, 0, stop).items() if rows}
    there = {segment.epoch for segment in inputs.segments(tx, row.stage, port, 0, stop)}
    return max([_oldest(tx, row), *(epoch + 1 for epoch in held - there)])


def check_epoch(row: StageRow, epoch: int) -> None:
    """Refuse an epoch that is not there yet, and is not the next one."""
    if not 0 <= epoch <= row.head + 1:
        newest = f"the newest epoch is {row.head}" if row.head >= 0 else "no epoch is committed yet"
        raise LedgerError(f"there is no epoch {epoch}: {newest}", operation="read channel", stage=row.stage)


@contextmanager
def writing(work_dir: Path) -> Iterator[Connection]:
    """A write to the ledger of a flow that exists, by somebody outside it: cursors of readers, and pins."""
    with reading(work_dir):  # says what is wrong with the directory, and makes nothing
        pass
    ledger, table = Ledger(work_dir), schema.pins
    try:
        with ledger.unfenced_write() as tx:
            stale = table.c.until_ms <= time.time_ns() // 1_000_000
            tx.execute(sa.delete(table).where(table.c.reader.startswith(PINS), stale))
            yield tx
    finally:
        # Not `close`, which waits for all others to let go of the write-ahead log.
        ledger.engine.dispose()


def _oldest(tx: Connection, row: StageRow) -> int:
    """The first epoch of which the ledger still has the manifest."""
    table = schema.manifests
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    found = tx.execute(sa.select(sa.func.min(table.c.epoch)).where(*mine)).scalar()
    return row.head + 1 if found is None else int(found)
