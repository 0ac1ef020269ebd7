"""The interval join: pairs of a left and a right row with equal keys and times near each other.

The state holds the rows of both sides, in slices of event time by when they can find a partner no more. The rows of
an epoch are paired with those of the state and with each other, and then kept. Equal rows are as many as they came.

Invariants: a pair leaves once, in the epoch of the later of its rows; a row on time finds every partner that was on
time, because a slice is dropped only when the watermark has passed all its rows' bounds; a row's place in the state is
its time, the epoch it came in, and its rank among the epoch's rows of its hash and time, so that no row replaces
another; a key that holds a null has no partner. In a left join a row knows whether it had one, and leaves with nulls
when its slice is dropped, or at once if none can come.
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
from holdfast.protocols.watermark import Timing
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, sent
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.event_time import INPUT, ON_TIME, REASONS, TOO_FAR, Clock, counted, newest_of
from holdfast.spark.operators.moving import or_lowest
from holdfast.spark.operators.packing import Packing
from holdfast.spark.operators.pairing import Interval, distinct, is_left, ranks
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.between import Inside
from holdfast.state.canonical import Bools, Ints, canonical_order, same_at
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

PLACE = pa.schema([("time", pa.int64()), ("ordinal", pa.int64())])
MATCHED = "matched"

# A row's ordinal is its epoch, and below this bit its rank.
_RANK_BITS = 32


@dataclass(frozen=True)
class _Rows:
    """Rows in order of hash, time and columns."""

    h: Ints
    time: Ints
    columns: pa.Table  # c0, c1, ...

    def only(self, mask: Bools) -> _Rows:
        if mask.all():
            return self
        return _Rows(self.h[mask], self.time[mask], take_rows(self.columns, np.flatnonzero(mask)))


@dataclass(frozen=True)
class _Pairs:
    """Pairs, as rows of a pool: the epoch's rows, then those that the state gave."""

    left: Ints
    right: Ints


@dataclass(frozen=True)
class JoinOperator:
    """An interval join, bound to the types of its sides."""

    keys: BoundKeys
    clocks: tuple[Clock, Clock]
    interval: Interval
    outer: bool  # whether left rows without a partner leave too
    packing: Packing
    feeds: int  # inputs of both sides; if more than two, rows say which one they are of
    chosen: tuple[tuple[int, str], ...]  # of each output column its side and place
    received: pa.Schema
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json

    @property
    def timing(self) -> Timing:
        """A pair still to come holds a row from the watermark on, and another no further back than the bounds."""
        back = max(self.interval.high_us, -self.interval.low_us, 0) + 1
        if self.outer:
            back = max(back, self.interval.high_us + self.interval.slice_us)
        times = [clock.time for clock in self.clocks]
        return Timing(
            tuple(time.column for time in times), times[0].late_us, emits_at_close=self.outer, holds_us=back
        )

    @property
    def view(self) -> StateView:
        """The key and the time of each row, of either side, that may still find a partner."""
        keys = [
            ViewColumn(k.name, k.dataType.simpleString(), field.type, (self.packing.place(0, k.name),))
            for k, field in zip(self.keys.fields, self.keys.stored, strict=True)
        ]
        matched = [ViewColumn(MATCHED, "boolean", pa.bool_(), (MATCHED,))] if self.outer else []
        time = self.clocks[0].view("time", "time")
        return StateView.of(self.state, [*keys, time, *matched], self.timing)

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

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the inputs have them."""
        packed = [self._received(rows, side) for side, rows in enumerate(sides) if rows is not None]
        return self.apply(pa.concat_tables(packed).combine_chunks(), spine, times)

    def _received(self, rows: pa.Table, side: int) -> pa.Table:
        """What `united` makes of the rows of a side."""
        h = (np.asarray(single(rows[HASH])) & -2) | side
        names = {self.packing.place(side, name): name for name in self.clocks[side].side.names}
        columns = [
            rows[names[field.name]] if field.name in names else pa.nulls(rows.num_rows, field.type)
            for field in self.packing.stored
        ]
        return pa.table([pa.array(h), *(rows[name] for name in self._tag), *columns], schema=self.received)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Pair the epoch's rows with the state's and with each other, keep them, and drop what has expired."""
        h, micros = np.asarray(single(rows[STATE_HASH])), self._micros(rows)
        flags = self.clocks[0].flags(micros, times, partial(np.add, 1))
        came = self._ordered(rows, h, micros, flags == ON_TIME)
        keyed = self._keyed(came.columns)
        new = came.only(keyed)
        found = self._confirmed(new, spine.lookup_between(self.interval.sought(new.h, new.time)))
        pairs = self._pairs(new, found)
        bucket = self.interval.bucket(new.h, new.time)
        kept = bucket > or_lowest(times.watermark_us)
        layers = [self._layer(new, bucket, pairs, kept, times.epoch)]
        out = [self._paired(new, found, pairs)]
        if self.outer:
            layers.append(self._newly_matched(new, found))
            keyless = came.only(~keyed & is_left(came.h))
            hopeless = new.only(~kept & ~self._has_partner(new, pairs))
            closed = self._closed(spine, times)
            expired = closed.num_rows
            unmatched = closed.filter(pc.invert(single(closed[MATCHED])))
            out += [self._unpaired(part) for part in (keyless.columns, hopeless.columns, unmatched)]
        else:
            expired = 0 if times.watermark_us is None else spine.count(times.watermark_us)
        return Changes(
            pa.concat_tables(layers),
            {"out": pa.concat_tables(out), **self._sides(rows, h, flags)},
            int(np.count_nonzero(kept)) - expired,
            counted(flags),
            self._newest(rows, h, micros, flags),
        )

    def _micros(self, rows: pa.Table) -> pa.Array:
        """Event times as numbers, each from its own side's column."""
        columns = [
            single(rows[self.packing.place(side, clock.time.column)]).view(pa.int64())
            for side, clock in enumerate(self.clocks)
        ]
        return pc.if_else(pa.array(is_left(np.asarray(single(rows[STATE_HASH])))), *columns)

    def _ordered(self, rows: pa.Table, h: Ints, micros: pa.Array, mask: Bools) -> _Rows:
        """Some rows by hash, then by time, then as their columns settle it."""
        chosen = np.flatnonzero(mask)
        h, time = h[chosen], np.asarray(micros.take(pa.array(chosen)))
        order = np.lexsort((time, h))
        h, time = h[order], time[order]
        columns = take_rows(rows.select(self.packing.stored.names), chosen[order])
        order = canonical_order(h, time, [single(columns[name]) for name in self.packing.comparable])
        if (order[1:] < order[:-1]).any():
            columns = take_rows(columns, order)
        return _Rows(h, time, columns)

    def _keyed(self, columns: pa.Table) -> Bools:
        """Rows that can have a partner: as in SQL, a null equals nothing."""
        keyed = np.ones(columns.num_rows, np.bool_)
        for key in self._keys(columns):
            keyed &= key.is_valid().to_numpy(zero_copy_only=False)
        return keyed

    def _keys(self, columns: pa.Table) -> list[pa.Array]:
        return [single(columns[self.packing.place(0, name)]) for name in self.keys.names]

    def _confirmed(self, new: _Rows, found: Inside) -> Inside:
        """Of rows with the hash that was sought, those with the key."""
        every = np.arange(len(found.needle))
        equal = same_at(self._keys(new.columns), found.needle, self._keys(found.rows), every)
        if equal.all():
            return found
        return Inside(found.needle[equal], found.bucket[equal], take_rows(found.rows, np.flatnonzero(equal)))

    def _pairs(self, new: _Rows, found: Inside) -> _Pairs:
        left, right = self.interval.pairs(new.h, new.time)
        keys = self._keys(new.columns)
        equal = same_at(keys, left, keys, right)
        stored = len(new.h) + np.arange(len(found.needle))
        came_left = is_left(new.h)[found.needle]
        return _Pairs(
            np.concatenate([np.where(came_left, found.needle, stored), left[equal]]),
            np.concatenate([np.where(came_left, stored, found.needle), right[equal]]),
        )

    def _paired(self, new: _Rows, found: Inside, pairs: _Pairs) -> pa.Table:
        indices = pa.array(pairs.left), pa.array(pairs.right)
        columns = [
            pa.concat_arrays([single(new.columns[place]), single(found.rows[place])]).take(indices[side])
            for side, place in self.chosen
        ]
        return pa.table(columns, schema=self.output)

    def _unpaired(self, rows: pa.Table) -> pa.Table:
        """Left rows, with nulls in the place of the right."""
        columns = [
            pa.nulls(rows.num_rows, field.type) if side else single(rows[place])
            for (side, place), field in zip(self.chosen, self.output, strict=True)
        ]
        return pa.table(columns, schema=self.output)

    def _has_partner(self, new: _Rows, pairs: _Pairs) -> Bools:
        """Which of the epoch's rows need not wait for one: those that have one, and all of the right."""
        has = ~is_left(new.h)
        has[pairs.left[pairs.left < len(has)]] = True
        return has

    def _layer(self, new: _Rows, bucket: Ints, pairs: _Pairs, kept: Bools, epoch: int) -> pa.Table:
        """The epoch's rows as they are kept, in the order of the state."""
        ordinal = (np.int64(epoch) << _RANK_BITS) + ranks(new.h, new.time)
        rows = np.flatnonzero(kept)
        rows = rows[np.argsort(bucket[rows], kind="stable")]
        numbers = [bucket[rows], new.h[rows], np.ones(len(rows), np.bool_), new.time[rows], ordinal[rows]]
        matched = [pa.array(self._has_partner(new, pairs)[rows])] if self.outer else []
        columns = take_rows(new.columns, rows).columns
        return pa.table([*map(pa.array, numbers), *matched, *columns], self.state.changes)

    def _newly_matched(self, new: _Rows, found: Inside) -> pa.Table:
        """Kept left rows that have now had their first partner."""
        waiting = ~np.asarray(single(found.rows[MATCHED]).to_numpy(zero_copy_only=False))
        h = new.h[found.needle] ^ 1
        first = np.flatnonzero(waiting & is_left(h))
        place = [single(found.rows[name]).to_numpy()[first] for name in PLACE.names]
        first = first[distinct(found.bucket[first], h[first], *place)]
        table = take_rows(found.rows, first)
        yes = pa.repeat(pa.scalar(True), len(first))
        at = table.schema.get_field_index(MATCHED)
        columns = [*table.columns[:at], yes, *table.columns[at + 1 :]]
        return pa.table(
            [pa.array(found.bucket[first]), pa.array(h[first]), yes, *columns], self.state.changes
        )

    def _closed(self, spine: Spine, times: Times) -> pa.Table:
        """Rows in slices that the watermark has passed."""
        if times.watermark_us is None:
            return self.state.changes.empty_table()
        return spine.rows(last_bucket=times.watermark_us)

    def _sides(self, rows: pa.Table, h: Ints, flags: np.ndarray) -> dict[str, pa.Table]:
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

    def _newest(self, rows: pa.Table, h: Ints, micros: pa.Array, flags: np.ndarray) -> list[int | None]:
        near = flags != TOO_FAR
        feed = np.asarray(single(rows[INPUT])) if self._tag else h & 1
        return newest_of(micros, [near & (feed == number) for number in range(self.feeds)])
