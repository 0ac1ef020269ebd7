"""What all joins share: how the rows of two streams reach a task, which of them are on time, and what can be a partner.

The rows of both sides come in one table, columns of equal type in one place, with the side in the lowest bit of the
hash. They are put in order of hash, time and columns, so that two executions of a plan see them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.json import Json
from holdfast.flow.ports import LATE, QUARANTINE, port_of
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, sent
from holdfast.spark.operators.contract import Direct, Shape, Times
from holdfast.spark.operators.event_time import INPUT, REASONS, TOO_FAR, Clock, newest_of
from holdfast.spark.operators.packing import Packing
from holdfast.spark.operators.pairing import Interval, is_left, ranks
from holdfast.spark.operators.view import ViewColumn
from holdfast.state.canonical import Bools, Ints, canonical_order
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

PLACE = pa.schema([("time", pa.int64()), ("ordinal", pa.int64())])

# A row's ordinal is its epoch, and below this bit its rank.
_RANK_BITS = 32


@dataclass(frozen=True)
class SideRows:
    """Rows in order of hash, time and columns."""

    h: Ints
    time: Ints
    columns: pa.Table  # c0, c1, ...

    def only(self, mask: Bools) -> SideRows:
        """Some of the rows."""
        if mask.all():
            return self
        return SideRows(self.h[mask], self.time[mask], take_rows(self.columns, np.flatnonzero(mask)))


@dataclass(frozen=True)
class TwoSides:
    """Two streams, bound to their types."""

    keys: BoundKeys
    clocks: tuple[Clock, Clock]
    interval: Interval
    packing: Packing
    feeds: int  # inputs of both sides; if more than two, rows say which one they are of
    received: pa.Schema
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json

    def united(self, sides: Sequence[DataFrame]) -> DataFrame:
        """The rows of both sides in one table, each with its hash."""
        left, right = (self._packed(df, number) for number, df in enumerate(sides))
        return left.union(right)

    def _packed(self, df: DataFrame, side: int) -> DataFrame:
        h = f.expr(f"({hash_sql(self.keys.names, self.hash_bits)} & -2L) | {side}L").alias(HASH)
        return df.select(h, *self._tag, *self.packing.columns(side))

    @property
    def _tag(self) -> list[str]:
        return [INPUT] if self.feeds > 2 else []

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows in the partition of the task that owns their key."""
        columns = [*self._tag, *self.packing.stored.names]
        return sent(df, shape.boundaries).select(f.col(HASH).alias(STATE_HASH), *columns)

    @property
    def direct(self) -> Direct | None:
        """All columns of both sides, if the keys can be hashed here."""
        columns = tuple(tuple(clock.side.names) for clock in self.clocks)
        return Direct(self.keys.names, columns) if self.keys.hashable else None

    def as_received(self, sides: Sequence[pa.Table | None]) -> pa.Table:
        """What `united` makes of the rows of both sides, from rows as the inputs have them."""
        packed = [self._received(rows, side) for side, rows in enumerate(sides) if rows is not None]
        return pa.concat_tables(packed).combine_chunks()

    def _received(self, rows: pa.Table, side: int) -> pa.Table:
        h = (np.asarray(single(rows[HASH])) & -2) | side
        names = {self.packing.place(side, name): name for name in self.clocks[side].side.names}
        columns = [
            rows[names[field.name]] if field.name in names else pa.nulls(rows.num_rows, field.type)
            for field in self.packing.stored
        ]
        return pa.table([pa.array(h), *(rows[name] for name in self._tag), *columns], schema=self.received)

    @property
    def view_columns(self) -> list[ViewColumn]:
        """The key and the time of a row of either side."""
        keys = [
            ViewColumn(k.name, k.dataType.simpleString(), field.type, (self.packing.place(0, k.name),))
            for k, field in zip(self.keys.fields, self.keys.stored, strict=True)
        ]
        return [*keys, self.clocks[0].view("time", "time")]

    def flags(self, micros: pa.Array, times: Times) -> np.ndarray:
        """Which rows are on time: those not older than the watermark, whatever their side."""
        return self.clocks[0].flags(micros, times, partial(np.add, 1))

    def micros(self, rows: pa.Table) -> pa.Array:
        """Event times as numbers, each from its own side's column."""
        columns = [
            single(rows[self.packing.place(side, clock.time.column)]).view(pa.int64())
            for side, clock in enumerate(self.clocks)
        ]
        return pc.if_else(pa.array(is_left(np.asarray(single(rows[STATE_HASH])))), *columns)

    def ordered(self, rows: pa.Table, h: Ints, micros: pa.Array, mask: Bools) -> SideRows:
        """Some rows by hash, then by time, then as their columns settle it."""
        chosen = np.flatnonzero(mask)
        h, time = h[chosen], np.asarray(micros.take(pa.array(chosen)))
        order = np.lexsort((time, h))
        h, time = h[order], time[order]
        columns = take_rows(rows.select(self.packing.stored.names), chosen[order])
        order = canonical_order(h, time, [single(columns[name]) for name in self.packing.comparable])
        if (order[1:] < order[:-1]).any():
            columns = take_rows(columns, order)
        return SideRows(h, time, columns)

    def keyed(self, columns: pa.Table) -> Bools:
        """Rows that can have a partner: as in SQL, a null equals nothing."""
        keyed = np.ones(columns.num_rows, np.bool_)
        for key in self.key_columns(columns):
            keyed &= key.is_valid().to_numpy(zero_copy_only=False)
        return keyed

    @property
    def key_places(self) -> list[str]:
        """Where the keys stand, on either side."""
        return [self.packing.place(0, name) for name in self.keys.names]

    def key_columns(self, columns: pa.Table) -> list[pa.Array]:
        """The keys of rows."""
        return [single(columns[place]) for place in self.key_places]

    def ordinals(self, rows: SideRows, epoch: int) -> Ints:
        """Numbers that tell rows of one hash and time apart, whatever epoch they came in."""
        numbers: Ints = (np.int64(epoch) << _RANK_BITS) + ranks(rows.h, rows.time)
        return numbers

    def closed(self, spine: Spine, times: Times) -> pa.Table:
        """Rows in slices that the watermark has passed."""
        if times.watermark_us is None:
            return self.state.changes.empty_table()
        return spine.rows(last_bucket=times.watermark_us)

    def aside(self, rows: pa.Table, h: Ints, flags: np.ndarray) -> dict[str, pa.Table]:
        """What goes another way, each side by its own ports."""
        sides = {}
        for number, clock in enumerate(self.clocks):
            for port in (LATE, QUARANTINE):
                wanted = [flag for flag, (_, to) in REASONS.items() if to == port]
                chosen = np.flatnonzero(np.isin(flags, wanted) & (is_left(h) == (number == 0)))
                if chosen.size and port_of(port, number) in clock.ports:
                    sides[port_of(port, number)] = self._side_rows(number, take_rows(rows, chosen), h[chosen])
        return sides

    def _side_rows(self, side: int, rows: pa.Table, h: Ints) -> pa.Table:
        ties = [single(rows[name]) for name in self.packing.comparable]
        ordered = take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, ties))
        schema = self.clocks[side].side
        return pa.table([single(ordered[self.packing.place(side, n)]) for n in schema.names], schema=schema)

    def newest(self, rows: pa.Table, h: Ints, micros: pa.Array, flags: np.ndarray) -> list[int | None]:
        """The largest time of each feed, but for rows from too far in the future."""
        near = flags != TOO_FAR
        feed = np.asarray(single(rows[INPUT])) if self._tag else h & 1
        return newest_of(micros, [near & (feed == number) for number in range(self.feeds)])
