"""What consumers have read and what is there to read: source items, channels and cursors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger, record_event

# Items that an event names; the others are counted.
_NAMED_MAX = 10


@dataclass(frozen=True)
class Item:
    """One discovery of a source: what it is, how large, and how the source will find it again."""

    identity: str
    rows: int | None  # None if it cannot tell; an item of none is never read
    bytes: int
    body: Json


@dataclass(frozen=True)
class Segment:
    """The files of one epoch on one port."""

    id: int
    epoch: int
    attempt: str
    status: str
    rows: int
    files: list[Json]


def add_items(ledger: Ledger, generation: int, found: Mapping[str, Sequence[Item]]) -> int:
    """Give new discoveries of sources their ordinals, all at once: no epoch sees one source's and misses another's.

    What is known already is left as it is. Returns how many were new.
    """
    with ledger.write(generation) as tx:
        rows = [row for source, items in found.items() for row in _new_rows(tx, source, items)]
        if rows:
            tx.execute(sa.insert(schema.source_items), rows)
        return len(rows)


def _new_rows(tx: Connection, source: str, items: Sequence[Item]) -> list[Json]:
    table = schema.source_items
    known = _known(tx, source, [item.identity for item in items])
    last = tx.execute(sa.select(sa.func.max(table.c.ordinal)).where(table.c.source == source)).scalar()
    first = 0 if last is None else int(last) + 1
    new = [item for item in items if item.identity not in known]
    return [
        {
            "source": source,
            "ordinal": ordinal,
            "identity": item.identity,
            "rows": item.rows,
            "bytes": item.bytes,
            "body": item.body,
        }
        for ordinal, item in enumerate(new, first)
    ]


def number_of_items(tx: Connection, source: str) -> int:
    """How much a source has discovered so far."""
    table = schema.source_items
    return int(tx.execute(sa.select(sa.func.count()).where(table.c.source == source)).scalar_one())


def known_identities(tx: Connection, source: str) -> set[str]:
    """Everything that a source has discovered so far."""
    table = schema.source_items
    return set(tx.execute(sa.select(table.c.identity).where(table.c.source == source)).scalars())


def number_unread(tx: Connection, source: str, consumers: Sequence[str]) -> int:
    """Items of a source that one of these has yet to read."""
    mine = (_reads(source), schema.cursors.c.consumer.in_(consumers))
    read = tx.execute(sa.select(sa.func.min(schema.cursors.c.processed)).where(*mine)).scalar()
    return number_of_items(tx, source) - int(read or 0)


def last_unneeded(tx: Connection, source: str, consumers: Sequence[str]) -> Item | None:
    """The last item of a source that none of these will ask for again, whatever happens to it."""
    mine = (_reads(source), schema.cursors.c.consumer.in_(consumers))
    needed = tx.execute(sa.select(sa.func.min(schema.cursors.c.needed)).where(*mine)).scalar() or 0
    return next(iter(items(tx, source, int(needed) - 1, int(needed))), None)


def _reads(source: str) -> sa.ColumnElement[bool]:
    """Cursors over a source; what it sets aside is read by cursors of its own."""
    name = schema.cursors.c.input
    return sa.or_(name == f"source:{source}", name.startswith(f"source:{source}#", autoescape=True))


def unread_by_all(tx: Connection, source: str) -> dict[int, Item]:
    """By ordinal, the items of a source that no committed epoch of any stage has read."""
    cursors, table = schema.cursors, schema.source_items
    read = tx.execute(sa.select(sa.func.max(cursors.c.processed)).where(_reads(source))).scalar() or 0
    last = tx.execute(sa.select(sa.func.max(table.c.ordinal)).where(table.c.source == source)).scalar()
    stop = 0 if last is None else int(last) + 1
    return dict(zip(range(int(read), stop), items(tx, source, int(read), stop), strict=True))


def replace_items(ledger: Ledger, generation: int, source: str, mended: Mapping[int, Item]) -> None:
    """Describe items anew that no committed epoch has read; plans that count on them are made anew too."""
    table = schema.source_items
    with ledger.write(generation) as tx:
        if not mended.keys() <= unread_by_all(tx, source).keys():
            raise LedgerError(f"an epoch has read items of source {source!r}", operation="mend")
        for ordinal, item in mended.items():
            tx.execute(
                sa.update(table)
                .where(table.c.source == source, table.c.ordinal == ordinal)
                .values(rows=item.rows, bytes=item.bytes, body=item.body)
            )
        _drop_open_plans(tx, source, min(mended))
        names = ", ".join(item.identity for item in list(mended.values())[:_NAMED_MAX])
        record_event(
            tx,
            "input mended",
            f"{len(mended)} items of {source} have changed: {names}",
            generation=generation,
        )


def _drop_open_plans(tx: Connection, source: str, ordinal: int) -> None:
    """Plans without a manifest that read a source at or above an ordinal."""
    plans, stages = schema.plans, schema.stages
    found = tx.execute(
        sa.select(plans.c.stage, plans.c.branch, plans.c.epoch, plans.c.body).where(
            plans.c.stage == stages.c.stage,
            plans.c.branch == stages.c.branch,
            plans.c.epoch == stages.c.head + 1,
        )
    ).all()
    for stage, branch, epoch, body in found:
        ranges = [
            stop for name, (_, stop) in body["ranges"].items() if name.partition("#")[0] == f"source:{source}"
        ]
        if any(stop > ordinal for stop in ranges):
            tx.execute(
                sa.delete(plans).where(
                    plans.c.stage == stage, plans.c.branch == branch, plans.c.epoch == epoch
                )
            )


def items(tx: Connection, source: str, start: int, stop: int) -> list[Item]:
    """A source's items from ordinal `start` up to but without `stop`."""
    table = schema.source_items
    found = tx.execute(
        sa.select(table.c.identity, table.c.rows, table.c.bytes, table.c.body)
        .where(table.c.source == source, table.c.ordinal >= start, table.c.ordinal < stop)
        .order_by(table.c.ordinal)
    )
    return [Item(*row) for row in found]


def rest_of(tx: Connection, name: str, start: int) -> tuple[int, int]:
    """Where an input ends now, and the rows that it holds from a position on."""
    kind, _, rest = name.partition(":")
    if kind == "source":
        table, source = schema.source_items, rest.partition("#")[0]
        found = tx.execute(
            sa.select(sa.func.max(table.c.ordinal), sa.func.sum(table.c.rows)).where(
                table.c.source == source, table.c.ordinal >= start
            )
        ).one()
        return (start, 0) if found[0] is None else (int(found[0]) + 1, int(found[1] or 0))
    stage, _, port = rest.rpartition(".")
    head = tx.execute(sa.select(schema.stages.c.head).where(schema.stages.c.stage == stage)).scalar_one()
    stop = max(start, int(head) + 1)
    return stop, sum(rows_written(tx, stage, port, start, stop).values())


def rows_between(tx: Connection, name: str, start: int, stop: int) -> int:
    """The rows that an input holds from a position up to but without another; an item that cannot tell counts none."""
    kind, _, rest = name.partition(":")
    if kind == "channel":
        stage, _, port = rest.rpartition(".")
        return sum(rows_written(tx, stage, port, start, stop).values())
    table = schema.source_items
    mine = (table.c.source == rest.partition("#")[0], table.c.ordinal >= start, table.c.ordinal < stop)
    return int(tx.execute(sa.select(sa.func.sum(table.c.rows)).where(*mine)).scalar() or 0)


def segments(tx: Connection, stage: str, port: str, start: int, stop: int) -> list[Segment]:
    """The segments of a port's epochs from `start` up to but without `stop`."""
    table, stages = schema.segments, schema.stages
    branch = sa.select(stages.c.branch).where(stages.c.stage == stage).scalar_subquery()
    found = tx.execute(
        sa.select(table.c.id, table.c.epoch, table.c.attempt, table.c.status, table.c.rows, table.c.files)
        .where(
            table.c.stage == stage,
            table.c.branch == branch,
            table.c.port == port,
            table.c.epoch >= start,
            table.c.epoch < stop,
            table.c.status != "condemned",
        )
        .order_by(table.c.epoch, table.c.id)
    )
    return [Segment(*row) for row in found]


def rows_written(tx: Connection, stage: str, port: str, start: int, stop: int) -> dict[int, int]:
    """Rows that the manifests of a channel's epochs say were written, whether still kept or not."""
    table, stages = schema.manifests, schema.stages
    branch = sa.select(stages.c.branch).where(stages.c.stage == stage).scalar_subquery()
    found = tx.execute(
        sa.select(table.c.epoch, table.c.body)
        .where(table.c.stage == stage, table.c.branch == branch, table.c.epoch >= start, table.c.epoch < stop)
        .order_by(table.c.epoch)
    )
    return {epoch: int(body["rows_out"].get(port, 0)) for epoch, body in found}


def processed(tx: Connection, consumer: str, name: str) -> int:
    """The next position that a consumer will read."""
    table = schema.cursors
    found = tx.execute(
        sa.select(table.c.processed).where(table.c.consumer == consumer, table.c.input == name)
    )
    return int(found.scalar_one())


def unread_size(
    tx: Connection, consumers: Iterable[str], stage: str, port: str, last: int | None = None
) -> tuple[int, int]:
    """Rows and bytes of a channel that its slowest consumer has not read; only up to an epoch, if one is named."""
    cursors, table = schema.cursors, schema.segments
    positions = tx.execute(
        sa.select(sa.func.min(cursors.c.processed)).where(
            cursors.c.consumer.in_(list(consumers)), cursors.c.input == f"channel:{stage}.{port}"
        )
    ).scalar()
    if positions is None:
        return 0, 0
    found = tx.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(table.c.rows), 0), sa.func.coalesce(sa.func.sum(table.c.bytes), 0)
        ).where(
            table.c.stage == stage,
            table.c.port == port,
            table.c.epoch >= positions,
            table.c.status == "live",
            *([table.c.epoch <= last] if last is not None else []),
        )
    ).one()
    return int(found[0]), int(found[1])


def move_cursor(
    ledger: Ledger,
    generation: int,
    consumer: str,
    name: str,
    start: int,
    stop: int,
    noting: Callable[[Connection], None] | None = None,
) -> None:
    """Move a sink's cursor after the sink has made the rows durable; `noting` is done with it, once."""
    table = schema.cursors
    with ledger.write(generation) as tx:
        moved = tx.execute(
            sa.update(table)
            .where(table.c.consumer == consumer, table.c.input == name, table.c.processed == start)
            .values(processed=stop, needed=stop)
        )
        if moved.rowcount == 1 and noting is not None:
            noting(tx)


def _known(tx: Connection, source: str, identities: Sequence[str]) -> set[str]:
    table, known = schema.source_items, set()
    for start in range(0, len(identities), 500):
        part = identities[start : start + 500]
        known |= set(
            tx.execute(
                sa.select(table.c.identity).where(table.c.source == source, table.c.identity.in_(part))
            ).scalars()
        )
    return known
