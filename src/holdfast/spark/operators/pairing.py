"""Which rows of two sides are near each other in time, as arithmetic on arrays.

The side of a row is the lowest bit of its hash: 0 for the left, 1 for the right. So the rows of a key stand next to
each other, the left ones first, and what is sought for a row has its hash with that bit turned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.core import limits
from holdfast.state.between import Ranges, rows_between
from holdfast.state.canonical import Bools, Ints

_SIDE = np.int64(1)


@dataclass(frozen=True)
class Interval:
    """Bounds of `right time - left time`, both included, and how long a row can still find a partner.

    A left row is of use until the watermark passes its time plus the upper bound, a right row until it passes
    its time less the lower bound; rows are kept in slices of that moment, so both sides expire by one watermark.
    """

    low_us: int
    high_us: int

    @property
    def slice_us(self) -> int:
        """Long enough that a row's partners are in few slices, short enough that little is kept for nothing."""
        return max((self.high_us - self.low_us) // limits.JOIN_SLICES, limits.JOIN_SLICE_US_MIN)

    def bucket(self, h: Ints, time: Ints) -> Ints:
        """The slice in which each row expires, by its end: a watermark that has reached it has passed the row."""
        return self._slice(time + np.where(is_left(h), self.high_us, -self.low_us))

    def waits_us(self, side: int) -> int:
        """How far behind the watermark a row of a side may lie that still waits: its bound, and the rest of its slice."""
        return (-self.low_us if side else self.high_us) + self.slice_us

    def sought(self, h: Ints, time: Ints) -> Ranges:
        """For each row, where its partners are: they expire from its own time on, for as long as the bounds allow."""
        left = is_left(h)
        return Ranges(
            h ^ _SIDE,
            time + np.where(left, self.low_us, -self.high_us),
            time + np.where(left, self.high_us, -self.low_us),
            self._slice(time),
            self._slice(time + (self.high_us - self.low_us)),
        )

    def spans(self, h: Ints, time: Ints) -> Ranges:
        """Of rows in order of hash and time: what `sought` gives, with ranges that overlap as one.

        All ranges are equally long, so they end in the order in which they begin. A row of the state lies in one of
        them at most, and is found once, however many rows it is near to.
        """
        sought = self.sought(h, time)
        first = np.ones(len(h), np.bool_)
        first[1:] = (sought.h[1:] != sought.h[:-1]) | (sought.low[1:] > sought.high[:-1])
        last = np.append(first[1:], True)[: len(h)]
        return Ranges(
            sought.h[first],
            sought.low[first],
            sought.high[last],
            sought.first_bucket[first],
            sought.last_bucket[last],
        )

    def pairs(self, h: Ints, time: Ints) -> tuple[Ints, Ints]:
        """Of rows in order of hash and time: all pairs of a left and a right one, in order."""
        left = np.flatnonzero(is_left(h))
        sought = self.sought(h[left], time[left])
        place, right = rows_between(h, time, sought.h, sought.low, sought.high)
        return left[place], right

    def _slice(self, time: Ints) -> Ints:
        width = self.slice_us
        return (time // width + 1) * width


def is_left(h: Ints) -> Bools:
    """Which hashes are of left rows."""
    left: Bools = (h & _SIDE) == 0
    return left


def ranks(h: Ints, time: Ints) -> Ints:
    """The place of each row among those of its hash and time, which stand together.

    >>> ranks(np.array([2, 2, 2, 3]), np.array([5, 5, 6, 6]))
    array([0, 1, 0, 0])
    """
    new = np.ones(len(h), np.bool_)
    new[1:] = (h[1:] != h[:-1]) | (time[1:] != time[:-1])
    starts = np.flatnonzero(new)
    return np.arange(len(h)) - np.repeat(starts, np.diff(np.append(starts, len(h))))


def distinct(*columns: Ints) -> Ints:
    """One row of each kind, in order of the columns."""
    order = np.lexsort(tuple(reversed(columns)))
    changed = np.zeros(len(order), np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= np.diff(column[order]) != 0
    return order[changed]
