"""Where stages and sinks begin to read what was there before them, and what they are said not to have seen.

Invariant: no cursor stands before rows that are no longer kept. It is chosen in the transaction that writes it, and the
sweeper looks at the cursors once more in the one in which it lets go.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.flow.on_stage import NOW
from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow, stage_row
from holdfast.ledger.inputs import number_of_items, rows_written, segments
from holdfast.ledger.ledger import record_event
from holdfast.ledger.sink_starts import first_for_newcomers, set_start

# The event of a consumer that begins behind rows which it will never see.
NOT_SEEN = "not seen"


def begin_stage(tx: Connection, stage: str, name: str, where: str, generation: int) -> None:
    """Give a stage a cursor on an input; move one that it left behind when it was taken out of the flow."""
    known, consumer = _position(tx, f"stage:{stage}", name), f"stage:{stage}"
    row, port = _channel(tx, name)
    if known is None:
        start = _start(tx, name, where) if row is None else _first(tx, row, port, where)
        add_cursor(tx, consumer, name, start)
    else:
        start = known if row is None else kept_from(tx, row, port, known)
        if start > known:
            _move(tx, stage, name, start)
    if row is not None:
        missed = _missed(tx, row, port, known or 0, start)
        why = "was to start now" if known is None and where == NOW else "finds the rest no longer kept"
        _tell(tx, missed, f"reads on from epoch {start} of {name}, as it {why}", stage, generation)


def begin_sink(tx: Connection, sink: str, stage: str, name: str, generation: int) -> None:
    """Give a sink a cursor; one that was taken out and put back is given what is still kept, and told what is not."""
    known = _position(tx, f"sink:{sink}", name)
    row, port = stage_row(tx, stage), name.rpartition(".")[2]
    start = first_for_newcomers(tx, row)
    if known is None:
        add_cursor(tx, f"sink:{sink}", name, start)
        set_start(tx, sink, start)
        missed, why = _missed(tx, row, port, 0, start), "it is new, and starts with what comes next"
    else:
        start = kept_from(tx, row, port, known)
        missed, why = _missed(tx, row, port, known, start), "the rest is no longer kept"
    _tell(tx, missed, f"sink {sink} is given rows from epoch {start} of {name} on: {why}", stage, generation)


def add_cursor(tx: Connection, consumer: str, name: str, start: int) -> None:
    """Give a consumer a cursor on an input, unless it has one."""
    if _position(tx, consumer, name) is None:
        values = {"consumer": consumer, "input": name, "processed": start, "needed": start}
        tx.execute(sa.insert(schema.cursors).values(values))


def kept_from(tx: Connection, row: StageRow, port: str, start: int) -> int:
    """The first epoch at or behind `start` from which on all rows of a channel are kept."""
    stop = row.head + 1
    kept = {segment.epoch for segment in segments(tx, row.stage, port, start, stop)}
    held = rows_written(tx, row.stage, port, start, stop)
    gone = [epoch for epoch in range(start, stop) if held.get(epoch, 1) and epoch not in kept]
    return max((epoch + 1 for epoch in gone), default=start)


def _first(tx: Connection, row: StageRow, port: str, where: str) -> int:
    """Where a stage that is new begins in a channel; of a region, no further than what a return leaves of it."""
    newest = first_for_newcomers(tx, row)
    return newest if where == NOW else min(newest, kept_from(tx, row, port, 0))


def _start(tx: Connection, name: str, where: str) -> int:
    """Where a stage that is new begins in a source: with the first item, but not what was found whole when others read it.

    What a source sets aside is read from where it began to do so; before, malformed rows stopped the flow.
    """
    source, _, port = name.partition("#")
    if not port:
        return number_of_items(tx, source.removeprefix("source:")) if where == NOW else 0
    table = schema.cursors
    read = tx.execute(sa.select(sa.func.max(table.c.processed)).where(table.c.input == source)).scalar()
    return int(read or 0)


def _channel(tx: Connection, name: str) -> tuple[StageRow | None, str]:
    """The stage that writes an input and the port, no stage if it is a source or has never run."""
    kind, _, rest = name.partition(":")
    producer, _, port = rest.rpartition(".")
    stages = schema.stages
    known = (
        kind == "channel" and tx.execute(sa.select(stages.c.stage).where(stages.c.stage == producer)).first()
    )
    return (stage_row(tx, producer) if known else None), port


def _missed(tx: Connection, row: StageRow, port: str, start: int, stop: int) -> Json:
    """The epochs with rows from one position up to another, and the rows; those of forgotten epochs cannot be counted."""
    held = rows_written(tx, row.stage, port, start, stop)
    filled = {epoch: rows for epoch, rows in held.items() if rows}
    forgotten = [epoch for epoch in range(start, stop) if epoch not in held]
    found = sorted({*filled, *forgotten})
    return {"epochs": found, "rows": sum(filled.values()), "forgotten": bool(forgotten)}


def _tell(tx: Connection, missed: Json, what: str, stage: str, generation: int) -> None:
    epochs = missed["epochs"]
    if epochs:
        least = "at least " if missed["forgotten"] else ""
        rows = f"{least}{missed['rows']:,} {'row' if missed['rows'] == 1 else 'rows'}"
        said = f"{what}; {rows} of epochs {epochs[0]} to {epochs[-1]} it has not seen"
        record_event(tx, NOT_SEEN, said, stage=stage, generation=generation)


def _position(tx: Connection, consumer: str, name: str) -> int | None:
    table = schema.cursors
    mine = (table.c.consumer == consumer, table.c.input == name)
    return tx.execute(sa.select(table.c.processed).where(*mine)).scalar_one_or_none()


def _move(tx: Connection, stage: str, name: str, start: int) -> None:
    """Move the cursor of a stage that was away; a plan that it left open reads from where it stood, so it is made anew."""
    row, cursors, plans, stages = stage_row(tx, stage), schema.cursors, schema.plans, schema.stages
    mine = (cursors.c.consumer == f"stage:{stage}", cursors.c.input == name)
    tx.execute(sa.update(cursors).where(*mine).values(processed=start, needed=start))
    left = (plans.c.stage == stage, plans.c.branch == row.branch, plans.c.epoch == row.head + 1)
    tx.execute(sa.delete(plans).where(*left))
    tx.execute(sa.update(stages).where(stages.c.stage == stage).values(plan_version=row.plan_version + 1))
