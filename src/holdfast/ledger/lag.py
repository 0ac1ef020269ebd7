"""What waits in front of every consumer, and how large every state is: cheap enough to be asked all the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.files import cover


@dataclass(frozen=True)
class Lag:
    """What was discovered or committed upstream and is not processed yet."""

    items: int = 0  # of a source (files), or epochs of a channel that hold rows
    rows: int = 0  # in them, as far as they can tell

    def __add__(self, other: Lag) -> Lag:
        return Lag(self.items + other.items, self.rows + other.rows)


@dataclass(frozen=True)
class Standing:
    """Of one stage: what waits for it, and what it keeps."""

    lag: Lag = field(default_factory=Lag)
    state_bytes: int = 0


def lags(tx: Connection) -> dict[tuple[str, str], Lag]:
    """By consumer and input, as the cursors name them, what waits."""
    found = tx.execute(
        sa.select(schema.cursors.c.consumer, schema.cursors.c.input, schema.cursors.c.processed)
    )
    return {(consumer, name): _behind(tx, name, processed) for consumer, name, processed in found.all()}


def standings(tx: Connection) -> dict[str, Standing]:
    """By stage, what waits for it on all inputs, and the bytes of its state."""
    waiting = lags(tx)
    found = tx.execute(sa.select(schema.stages.c.stage, schema.stages.c.branch, schema.stages.c.head)).all()
    return {
        stage: Standing(lag_of(waiting, stage), _state_bytes(tx, stage, branch, head))
        for stage, branch, head in found
    }


def lag_of(waiting: Mapping[tuple[str, str], Lag], stage: str) -> Lag:
    """What waits for a stage on all its inputs."""
    return sum((lag for (consumer, _), lag in waiting.items() if consumer == f"stage:{stage}"), Lag())


def _behind(tx: Connection, name: str, processed: int) -> Lag:
    kind, _, rest = name.partition(":")
    if kind == "source":
        table = schema.source_items
        return _counted(
            tx, table.c.rows, table.c.source == rest.partition("#")[0], table.c.ordinal >= processed
        )
    table, (stage, _, port) = schema.segments, rest.rpartition(".")
    return _counted(
        tx,
        table.c.rows,
        table.c.stage == stage,
        table.c.branch
        == sa.select(schema.stages.c.branch).where(schema.stages.c.stage == stage).scalar_subquery(),
        table.c.port == port,
        table.c.epoch >= processed,
        table.c.status != "condemned",
    )


def _counted(tx: Connection, rows: sa.Column[int], *unread: sa.ColumnElement[bool]) -> Lag:
    items, total = tx.execute(sa.select(sa.func.count(), sa.func.sum(rows)).where(*unread)).one()
    return Lag(items, int(total or 0))


@dataclass(frozen=True)
class _Size:
    """A layer without the list of its runs, which may be long."""

    id: int
    first: int
    last: int
    bytes: int


def _state_bytes(tx: Connection, stage: str, branch: int, head: int) -> int:
    table = schema.layers
    found = tx.execute(
        sa.select(table.c.id, table.c.first, table.c.last, table.c.bytes).where(
            table.c.stage == stage, table.c.branch == branch, table.c.status == "live"
        )
    )
    spine, _ = cover([_Size(*values) for values in found], head)
    return sum(layer.bytes for layer in spine)
