"""The interval join that pairs: a left and a right row with equal keys and times near each other.

The state holds the rows of both sides, in slices of event time by when they can find a partner no more. The rows of
an epoch are paired with those of the state and with each other, and then kept. Equal rows are as many as they came.

Invariants: a pair leaves once, in the epoch of the later of its rows; a row on time finds every partner that was on
time, because a slice is dropped only when the watermark has passed all its rows' bounds; a row's place in the state is
its time, the epoch it came in, and its rank among the epoch's rows of its hash and time, so that no row replaces
another; a key that holds a null has no partner. In a left, right or full join a row of an outer side knows whether it
had one, and leaves with nulls when its slice is dropped, or at once if none can come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.protocols.watermark import Timing
from holdfast.spark.operators.contract import Changes, Times
from holdfast.spark.operators.event_time import ON_TIME, counted
from holdfast.spark.operators.moving import or_lowest
from holdfast.spark.operators.pairing import distinct, is_left
from holdfast.spark.operators.two_sides import PLACE, SideRows, TwoSides
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.between import Inside
from holdfast.state.canonical import Bools, Ints, same_at
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import single, take_rows
from holdfast.state.spine import Spine

MATCHED = "matched"


@dataclass(frozen=True)
class _Pairs:
    """Pairs, as rows of a pool: the epoch's rows, then those that the state gave."""

    left: Ints
    right: Ints


@dataclass(frozen=True)
class JoinOperator(TwoSides):
    """An inner, left, right or full join, bound to the types of its sides."""

    outer: tuple[int, ...]  # sides whose rows leave without a partner too
    chosen: tuple[tuple[int, str], ...]  # of each output column its side and place

    @property
    def timing(self) -> Timing:
        """A pair still to come holds a row from the watermark on, and another no further back than the bounds."""
        back = max(self.interval.high_us, -self.interval.low_us, 0) + 1
        for side in self.outer:
            back = max(back, self.interval.waits_us(side))
        times = [clock.time for clock in self.clocks]
        columns = tuple(time.column for time in times)
        return Timing(columns, times[0].late_us, emits_at_close=bool(self.outer), holds_us=back)

    @property
    def view(self) -> StateView:
        """The key and the time of each row, of either side, that may still find a partner."""
        matched = [ViewColumn(MATCHED, "boolean", pa.bool_(), (MATCHED,))] if self.outer else []
        return StateView.of(self.state, [*self.view_columns, *matched], self.timing)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the inputs have them."""
        return self.apply(self.as_received(sides), spine, times)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Pair the epoch's rows with the state's and with each other, keep them, and drop what has expired."""
        h, micros = np.asarray(single(rows[STATE_HASH])), self.micros(rows)
        flags = self.flags(micros, times)
        came = self.ordered(rows, h, micros, flags == ON_TIME)
        keyed = self.keyed(came.columns)
        new = came.only(keyed)
        found = self._confirmed(new, spine.lookup_between(self.interval.sought(new.h, new.time)))
        pairs = self._pairs(new, found)
        bucket = self.interval.bucket(new.h, new.time)
        kept = bucket > or_lowest(times.watermark_us)
        layers = [self._layer(new, bucket, pairs, kept, times.epoch)]
        out = [self._paired(new, found, pairs)]
        if self.outer:
            layers.append(self._newly_matched(new, found))
            hopeless = new.only(~kept & ~self._has_partner(new, pairs))
            closed = self.closed(spine, times)
            expired = closed.num_rows
            unmatched = closed.filter(pc.invert(single(closed[MATCHED])))
            out += self._keyless(came, ~keyed)
            out += self._unpaired(hopeless.columns, hopeless.h)
            out += self._unpaired(unmatched, np.asarray(single(unmatched[STATE_HASH])))
        else:
            expired = 0 if times.watermark_us is None else spine.count(times.watermark_us)
        return Changes(
            pa.concat_tables(layers),
            {"out": pa.concat_tables(out), **self.aside(rows, h, flags)},
            int(np.count_nonzero(kept)) - expired,
            counted(flags),
            self.newest(rows, h, micros, flags),
        )

    def _confirmed(self, new: SideRows, found: Inside) -> Inside:
        """Of rows with the hash that was sought, those with the key."""
        every = np.arange(len(found.needle))
        equal = same_at(self.key_columns(new.columns), found.needle, self.key_columns(found.rows), every)
        if equal.all():
            return found
        return Inside(found.needle[equal], found.bucket[equal], take_rows(found.rows, np.flatnonzero(equal)))

    def _pairs(self, new: SideRows, found: Inside) -> _Pairs:
        left, right = self.interval.pairs(new.h, new.time)
        keys = self.key_columns(new.columns)
        equal = same_at(keys, left, keys, right)
        stored = len(new.h) + np.arange(len(found.needle))
        came_left = is_left(new.h)[found.needle]
        return _Pairs(
            np.concatenate([np.where(came_left, found.needle, stored), left[equal]]),
            np.concatenate([np.where(came_left, stored, found.needle), right[equal]]),
        )

    def _paired(self, new: SideRows, found: Inside, pairs: _Pairs) -> pa.Table:
        indices = pa.array(pairs.left), pa.array(pairs.right)
        columns = [
            pa.concat_arrays([single(new.columns[place]), single(found.rows[place])]).take(indices[side])
            for side, place in self.chosen
        ]
        return pa.table(columns, schema=self.output)

    def _keyless(self, came: SideRows, mask: Bools) -> list[pa.Table]:
        """Rows of the outer sides that can have no partner, because their key holds a null."""
        of_side = [came.only(mask & ((came.h & 1) == side)) for side in self.outer]
        return [self._with_nulls(rows.columns, side) for side, rows in zip(self.outer, of_side, strict=True)]

    def _unpaired(self, rows: pa.Table, h: Ints) -> list[pa.Table]:
        """Rows that found no partner; all are of outer sides."""
        if len(self.outer) == 1:
            return [self._with_nulls(rows, self.outer[0])]
        return [
            self._with_nulls(take_rows(rows, np.flatnonzero((h & 1) == side)), side) for side in self.outer
        ]

    def _with_nulls(self, rows: pa.Table, side: int) -> pa.Table:
        """Rows of one side, with nulls in the place of the other; their keys are the pair's."""
        keys = set(self.key_places)
        columns = [
            single(rows[place]) if origin == side or place in keys else pa.nulls(rows.num_rows, field.type)
            for (origin, place), field in zip(self.chosen, self.output, strict=True)
        ]
        return pa.table(columns, schema=self.output)

    def _has_partner(self, new: SideRows, pairs: _Pairs) -> Bools:
        """Which of the epoch's rows need not wait for one: those that have one, and all of a side that is not outer."""
        has = np.zeros(len(new.h), np.bool_) if len(self.outer) == 2 else (new.h & 1) != self.outer[0]
        for side in self.outer:
            rows = (pairs.left, pairs.right)[side]
            has[rows[rows < len(has)]] = True
        return has

    def _layer(self, new: SideRows, bucket: Ints, pairs: _Pairs, kept: Bools, epoch: int) -> pa.Table:
        """The epoch's rows as they are kept, in the order of the state."""
        ordinal = self.ordinals(new, epoch)
        rows = np.flatnonzero(kept)
        rows = rows[np.argsort(bucket[rows], kind="stable")]
        numbers = [bucket[rows], new.h[rows], np.ones(len(rows), np.bool_), new.time[rows], ordinal[rows]]
        matched = [pa.array(self._has_partner(new, pairs)[rows])] if self.outer else []
        columns = take_rows(new.columns, rows).columns
        return pa.table([*map(pa.array, numbers), *matched, *columns], self.state.changes)

    def _newly_matched(self, new: SideRows, found: Inside) -> pa.Table:
        """Kept rows of an outer side that have now had their first partner; all others are matched already."""
        waiting = ~np.asarray(single(found.rows[MATCHED]).to_numpy(zero_copy_only=False))
        h = new.h[found.needle] ^ 1
        first = np.flatnonzero(waiting)
        place = [single(found.rows[name]).to_numpy()[first] for name in PLACE.names]
        first = first[distinct(found.bucket[first], h[first], *place)]
        table = take_rows(found.rows, first)
        yes = pa.repeat(pa.scalar(True), len(first))
        at = table.schema.get_field_index(MATCHED)
        columns = [*table.columns[:at], yes, *table.columns[at + 1 :]]
        return pa.table(
            [pa.array(found.bucket[first]), pa.array(h[first]), yes, *columns], self.state.changes
        )
