"""The interval join that asks: left rows that have a partner on the right (semi), or none (anti).

The state holds the left rows that wait, with all their columns, and of right rows the key and the time alone, one
for all rows of an epoch that share them. Slices of event time are those of the join that pairs.

Invariants: a left row leaves at most once, because it is not in the state any more, or never was, once it has a
partner; nothing is lost by that, because a right row never needs to know its partners. A semi join gives it out
then, an anti join gives out what is still there when its slice is dropped, or at once if no partner can come. The
work follows the rows and not the pairs: a row of the state is read once, and one partner is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.protocols.watermark import Timing
from holdfast.spark.operators.contract import Changes, Times
from holdfast.spark.operators.event_time import ON_TIME, counted
from holdfast.spark.operators.moving import or_lowest
from holdfast.spark.operators.pairing import Interval, is_left
from holdfast.spark.operators.two_sides import PLACE, SideRows, TwoSides
from holdfast.spark.operators.view import StateView
from holdfast.state.between import expanded, ranges_between
from holdfast.state.canonical import Bools, Ints, same_as_next, same_at
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import single, take_rows
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class _Stored:
    """Rows of the state that may be partners of the epoch's, or have them."""

    h: Ints
    bucket: Ints
    rows: pa.Table

    @property
    def place(self) -> list[Ints]:
        return [single(self.rows[name]).to_numpy() for name in PLACE.names]


@dataclass(frozen=True)
class ExistenceOperator(TwoSides):
    """A semi or an anti join, bound to the types of its sides."""

    anti: bool
    chosen: tuple[str, ...]  # of each output column its place on the left

    @property
    def timing(self) -> Timing:
        """A left row that comes is not behind the watermark; one that waits, no further than its bound allows."""
        back = self.interval.waits_us(0) if self.anti else self.interval.high_us + 1
        times = [clock.time for clock in self.clocks]
        columns = tuple(time.column for time in times)
        return Timing(columns, times[0].late_us, emits_at_close=self.anti, holds_us=max(back, 1))

    @property
    def view(self) -> StateView:
        """The key and the time of left rows that wait for a partner, and of right rows that may be one."""
        return StateView.of(self.state, self.view_columns, self.timing)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the inputs have them."""
        return self.apply(self.as_received(sides), spine, times)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Find out which left rows have a partner now, keep those that wait, and drop what has expired."""
        h, micros = np.asarray(single(rows[STATE_HASH])), self.micros(rows)
        flags = self.flags(micros, times)
        came = self.ordered(rows, h, micros, flags == ON_TIME)
        keyed = self.keyed(came.columns)
        new = self._without_repeats(came.only(keyed))
        stored = self._stored(new, spine)
        now, before = np.split(self._matched(new, stored), [len(new.h)])
        bucket = self.interval.bucket(new.h, new.time)
        open_ = bucket > or_lowest(times.watermark_us)
        kept = open_ & ~now
        closed = self.closed(spine, times)
        if self.anti:
            hopeless = new.only(~kept & ~now & is_left(new.h)).columns
            waited = closed.filter(pa.array(is_left(np.asarray(single(closed[STATE_HASH])))))
            leaving = [came.only(~keyed & is_left(came.h)).columns, hopeless, waited]
        else:
            leaving = [new.only(now).columns, take_rows(stored.rows, np.flatnonzero(before))]
        return Changes(
            pa.concat_tables([self._layer(new, bucket, kept, times.epoch), self._answered(stored, before)]),
            {"out": pa.concat_tables([self._given(part) for part in leaving]), **self.aside(rows, h, flags)},
            int(np.count_nonzero(kept)) - int(np.count_nonzero(before)) - closed.num_rows,
            counted(flags),
            self.newest(rows, h, micros, flags),
        )

    def _without_repeats(self, new: SideRows) -> SideRows:
        """The rows, but of right ones with the same key and time only the first."""
        repeats = np.zeros(len(new.h), np.bool_)
        repeats[1:] = same_as_next(new.h, new.time, self.key_columns(new.columns))
        return new.only(~repeats | is_left(new.h))

    def _stored(self, new: SideRows, spine: Spine) -> _Stored:
        """Rows of the state that are near some row that came, by their hash; each once."""
        sought = self.interval.spans(new.h, new.time)
        found = spine.lookup_between(sought)
        return _Stored(sought.h[found.needle], found.bucket, found.rows)

    def _matched(self, new: SideRows, stored: _Stored) -> Bools:
        """Which of the rows that came, and then of those stored, are left rows with a partner."""
        keys = [
            pa.concat_arrays(both)
            for both in zip(self.key_columns(new.columns), self.key_columns(stored.rows), strict=True)
        ]
        h, time = np.concatenate([new.h, stored.h]), np.concatenate([new.time, stored.place[0]])
        return matched(self.interval, h, time, keys)

    def _layer(self, new: SideRows, bucket: Ints, kept: Bools, epoch: int) -> pa.Table:
        """The left rows that wait, and of the right rows their keys."""
        left = is_left(new.h)
        sides = np.flatnonzero(kept & left), np.flatnonzero(kept & ~left)
        rows = np.concatenate(sides)
        numbers = [bucket, new.h, np.ones(len(new.h), np.bool_), new.time, self.ordinals(new, epoch)]
        keys = set(self.key_places)
        columns = []
        for field in self.state.values:
            column, count = single(new.columns[field.name]), len(sides[1])
            own = column.take(pa.array(sides[1])) if field.name in keys else pa.nulls(count, field.type)
            columns.append(pa.concat_arrays([column.take(pa.array(sides[0])), own]))
        return pa.table([*(pa.array(part[rows]) for part in numbers), *columns], self.state.changes)

    def _answered(self, stored: _Stored, before: Bools) -> pa.Table:
        """Tombstones of left rows that waited until now."""
        numbers = [stored.bucket, stored.h, np.zeros(len(before), np.bool_), *stored.place]
        count = int(np.count_nonzero(before))
        values = [pa.nulls(count, field.type) for field in self.state.values]
        return pa.table([*(pa.array(part[before]) for part in numbers), *values], self.state.changes)

    def _given(self, rows: pa.Table) -> pa.Table:
        return pa.table([single(rows[place]) for place in self.chosen], schema=self.output)


def matched(interval: Interval, h: Ints, time: Ints, keys: Sequence[pa.Array]) -> Bools:
    """Which rows are of the left and have a partner on the right; rows come in any order.

    The first row that the hash and the time offer is a partner, unless two keys share a hash: only then are all
    others looked at.
    """
    left, right = np.flatnonzero(is_left(h)), np.flatnonzero(~is_left(h))
    right = right[np.lexsort((time[right], h[right]))]
    sought = interval.sought(h[left], time[left])
    place, start, stop = ranges_between(h[right], time[right], sought.h, sought.low, sought.high)
    near = stop > start
    place, start, stop = left[place[near]], start[near], stop[near]
    equal = same_at(keys, place, keys, right[start])
    found = np.zeros(len(h), np.bool_)
    found[place[equal]] = True
    place, start, stop = place[~equal], start[~equal] + 1, stop[~equal]
    needle, candidate = expanded(start, stop)
    equal = same_at(keys, place[needle], keys, right[candidate])
    found[place[needle[equal]]] = True
    return found
