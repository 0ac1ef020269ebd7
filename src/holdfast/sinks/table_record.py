"""The record of a table sink: one row a target table, in the target's own database.

The row says who may write the table (the claim) and what was published last (the SinkRecord). Whoever opens the
table puts a new claim into the row, in one transaction; whoever publishes finds its own claim there, in the same
transaction as its rows, or is refused. So a process that was replaced changes nothing, however late it wakes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import FencedError, SinkError
from holdfast.core.reserved import RECORD_TABLE
from holdfast.sinks.contract import SinkRecord, other_flow

NAME = RECORD_TABLE

sinks = sa.Table(
    NAME,
    sa.MetaData(),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("flow", sa.Text, nullable=False),
    sa.Column("upsert_key", sa.JSON(none_as_null=True)),  # its columns; null for a table that is appended to
    sa.Column("claim", sa.Text, nullable=False),  # the opening that may publish
    sa.Column("claim_generation", sa.BigInteger, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),  # the first epoch that the table was to be given
    # The last record; null until there is one.
    sa.Column("branch", sa.BigInteger),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("revision", sa.BigInteger),
    sa.Column("generation", sa.BigInteger),
)


@dataclass(frozen=True)
class Held:
    """What the row of a table says."""

    claim: str
    claim_generation: int
    start: int
    last: SinkRecord | None


@dataclass(frozen=True)
class Claim:
    """An opening of a table, as the row has it while nobody else has opened the table."""

    id: str
    flow: str
    generation: int
    key: Sequence[str] | None


def read(tx: Connection, target: str, *, lock: bool = False) -> sa.Row | None:
    """The row of a table; with `lock`, nobody else changes it before the transaction ends."""
    found = sa.select(sinks).where(sinks.c.target == target)
    return tx.execute(found.with_for_update() if lock else found).one_or_none()


def held(row: sa.Row) -> Held:
    """What a row says."""
    last = None
    if row.epoch is not None:
        last = SinkRecord(row.flow, row.branch, row.epoch, row.revision, row.generation)
    return Held(row.claim, row.claim_generation, row.start, last)


def refuse_unless_ours(row: sa.Row, claim: Claim, where: str) -> None:
    """Stop before anything is changed, so that a mistake fences nobody."""
    if row.flow != claim.flow:
        raise other_flow(row.flow, claim.flow)
    if row.claim_generation > claim.generation:
        raise fenced(held(row), claim, where)
    key = None if claim.key is None else list(claim.key)
    if row.upsert_key != key:
        raise SinkError(
            f"{where} was written with key={row.upsert_key}, not with key={key}",
            operation="open",
            hint="Use the old key, or another table.",
        )


def put_claim(tx: Connection, target: str, claim: Claim, start: int, row: sa.Row | None) -> None:
    """Become the one who may publish; what was stored when the table was first opened stays."""
    values = {"claim": claim.id, "claim_generation": claim.generation}
    if row is None:
        key = None if claim.key is None else list(claim.key)
        new = {"target": target, "flow": claim.flow, "upsert_key": key, "start": start}
        tx.execute(sa.insert(sinks).values(**new, **values))
    else:
        tx.execute(sa.update(sinks).where(sinks.c.target == target).values(**values))


def put_record(tx: Connection, target: str, record: SinkRecord) -> None:
    """Say what is published last."""
    tx.execute(
        sa.update(sinks)
        .where(sinks.c.target == target)
        .values(
            branch=record.branch,
            epoch=record.epoch,
            revision=record.revision,
            generation=record.generation,
        )
    )


def fenced(by: Held, claim: Claim, where: str) -> FencedError:
    """The error for an opening that was replaced."""
    newer = by.claim_generation > claim.generation
    who = f"generation {by.claim_generation}" if newer else "another opening of the same generation"
    told = f", which has published up to epoch {by.last.epoch}" if by.last else ""
    return FencedError(
        f"generation {claim.generation} was fenced in {where} by {who}{told}", operation="fence"
    )
