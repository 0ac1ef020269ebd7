"""What consumers have not read of what they may read: a flow that has any of it is never idle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.inputs import number_of_items, rows_between
from holdfast.ledger.snapshots import are_known, region, released


@dataclass(frozen=True)
class Unread:
    """Positions of an input that a consumer may read and has not."""

    consumer: str
    input: str
    start: int
    stop: int
    rows: int  # in there, as far as it can be told

    def __str__(self) -> str:
        what = "items" if self.input.startswith("source:") else "epochs"
        reader = self.consumer.replace(":", " ", 1)
        rows = f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}"
        return f"{reader} has not read {what} {self.start} to {self.stop - 1} of {self.input}, with {rows}"


def all_unread(tx: Connection, consumers: Iterable[tuple[str, str]]) -> list[Unread]:
    """By consumer and input, as the cursors name them, what is unread; one without a cursor has nothing to read yet."""
    table = schema.cursors
    found = tx.execute(sa.select(table.c.consumer, table.c.input, table.c.processed))
    processed = {(consumer, name): int(at) for consumer, name, at in found}
    captured = region(tx) if are_known(tx) else set()
    unread = []
    for consumer, name in consumers:
        if (consumer, name) in processed:
            start, stop = processed[consumer, name], _end(tx, consumer, name, captured)
            if start < stop:
                unread.append(Unread(consumer, name, start, stop, rows_between(tx, name, start, stop)))
    return unread


def _end(tx: Connection, consumer: str, name: str, captured: set[str]) -> int:
    """Where an input ends for a consumer: outside a region, with what a complete snapshot covers."""
    kind, _, rest = name.partition(":")
    if kind == "source":
        return number_of_items(tx, rest.partition("#")[0])
    producer = rest.rpartition(".")[0]
    row = stage_row(tx, producer)
    inside = producer in captured and consumer.removeprefix("stage:") in captured
    return (row.head if inside or producer not in captured else released(tx, row)) + 1
