"""Rows on their way to PostgreSQL: in the form that the table's columns take, and into staging tables.

A staging table is unlogged, belongs to one opening of one table, and its rows carry an ordinal, by which the last of
several rows with one key is known, whoever staged it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import SinkError
from holdfast.core.reserved import STAGING
from holdfast.sinks import postgres_types, reading
from holdfast.sinks.database import Column, Epoch, ingest
from holdfast.sinks.postgres_engine import Session, quoted

# The rows of a segment are counted from its own number, so shifted.
_SEGMENT_SHIFT_BITS = 40

_LEFT = sa.text(
    "SELECT tablename FROM pg_tables WHERE schemaname = :schema AND starts_with(tablename, :prefix)"
)


@dataclass(frozen=True)
class Room:
    """Where one opening of a table stages rows, and how a task gets there."""

    info: str = field(repr=False)
    secret: str | None = field(repr=False)
    where: str
    schema: str
    name: str
    digest: str  # of the table
    claim: str

    @property
    def table(self) -> str:
        """The table, as SQL names it."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def staging(self, part: str) -> str:
        """The name of a staging table."""
        return f"{self.digest}_{self.claim}_{part}"

    def clear(self, tx: Connection, *, of_all: bool = False) -> None:
        """Drop what this opening has staged, or what all openings of the table have."""
        prefix = f"{self.digest}_" if of_all else self.staging("")
        left = tx.execute(_LEFT, {"schema": STAGING, "prefix": prefix}).scalars().all()
        if left:
            tx.exec_driver_sql(f"DROP TABLE IF EXISTS {', '.join(map(staged_name, left))}")


@dataclass(frozen=True)
class Cast:
    """The columns of an epoch in the form that the table's columns take."""

    schema: pa.Schema
    columns: tuple[str, ...]  # their types in the table, in the order of the schema

    @property
    def sent(self) -> pa.Schema:
        """The schema of the rows as they are sent."""
        return self.batch(pa.RecordBatch.from_pylist([], self.schema)).schema

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows in that form."""
        arrays = []
        for column, values in zip(self.columns, rows.columns, strict=True):
            convert = postgres_types.conversion(column, values.type)
            assert convert is not None, "checked when the cast was made"
            arrays.append(convert(values))
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)


def cast_of(found: Mapping[str, Column], room: Room, epoch: Epoch) -> Cast:
    """How the rows get into the table as it is now: others may have changed it since it was opened."""
    columns = tuple(found[name].declared if name in found else "" for name in epoch.schema.names)
    for wanted, column in zip(epoch.schema, columns, strict=True):
        if postgres_types.conversion(column, wanted.type) is None:
            raise SinkError(
                f"{room.where} cannot be written: {room.table} has no column {wanted.name!r} for {wanted.type} any more",
                operation="publish",
                hint="Something else changed the table: bring the column back.",
            )
    return Cast(epoch.schema, columns)


def copy_straight(session: Session, room: Room, epoch: Epoch, cast: Cast) -> None:
    """Copy rows into the table itself, inside the transaction of the session."""
    rows = map(cast.batch, reading.batches(epoch.segments, epoch.schema))
    with session.cursor() as cursor:
        ingest(cursor, room.name, cast.sent, rows, mode="append", db_schema_name=room.schema)


def copy_to_staging(session: Session, name: str, segments: Sequence[tuple[int, Path]], cast: Cast) -> None:
    """Make a staging table of numbered segments, inside the transaction of the session."""
    ordinal = ordinal_of(cast.schema)
    columns = [*zip(cast.schema.names, cast.columns, strict=True), (ordinal, "bigint")]
    declared = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns)
    sent = cast.sent.append(pa.field(ordinal, pa.int64()))
    with session.cursor() as cursor:
        cursor.execute(f"CREATE UNLOGGED TABLE {staged_name(name)} ({declared})")
        ingest(cursor, name, sent, _numbered(segments, cast, sent), mode="append", db_schema_name=STAGING)


def _numbered(segments: Sequence[tuple[int, Path]], cast: Cast, sent: pa.Schema) -> Iterator[pa.RecordBatch]:
    for number, segment in segments:
        at = number << _SEGMENT_SHIFT_BITS
        for batch in reading.batches([segment], cast.schema):
            ordinals = pa.array(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            yield pa.RecordBatch.from_arrays([*cast.batch(batch).columns, ordinals], schema=sent)


def ordinal_of(schema: pa.Schema) -> str:
    """A name for the ordinal that no column has."""
    name = "ordinal"
    while name in schema.names:
        name += "_"
    return name


def staged_name(name: str) -> str:
    """A staging table, as SQL names it."""
    return f"{STAGING}.{quoted(name)}"
