"""Rows of a hash whose first key lies between two numbers: for operators that keep many rows a hash, by time.

The rows of a hash stand together in a bucket, in order of their first key, so a range of them is found by
halving: rows outside it cost nothing, however many a hash has.

Invariants:
- All key columns are int64 without nulls.
- Of a bucket, hash and key the newest row decides, and a tombstone hides what is older.
- The answer depends on the rows alone, not on the layers that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.state.bloom import Probes
from holdfast.state.canonical import Bools, Ints, in_slots
from holdfast.state.locate import first_not_below, lower_bound
from holdfast.state.run import Run, RunInfo
from holdfast.state.schema import StateSchema


@dataclass(frozen=True)
class Ranges:
    """What is sought: by needle a hash, its first and last number, and its first and last bucket, all included."""

    h: Ints
    low: Ints
    high: Ints
    first_bucket: Ints
    last_bucket: Ints


@dataclass(frozen=True)
class Inside:
    """Rows found, with all their columns: in order of needle, bucket and key."""

    needle: Ints
    bucket: Ints
    rows: pa.Table  # key columns, then value columns


def expanded(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Pairs of a range's place and a number in it, for ranges that may be empty.

    >>> expanded(np.array([5, 7, 2]), np.array([7, 7, 3]))
    (array([0, 0, 2]), array([5, 6, 2]))
    """
    count = np.maximum(stop - start, 0)
    place = np.repeat(np.arange(len(count)), count)
    skipped = start - (np.cumsum(count) - count)
    return place, np.repeat(skipped, count) + np.arange(len(place))


def rows_between(h: Ints, number: Ints, sought: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Pairs of a needle and a row with its hash and a number from `low` to `high`; rows stand by hash and number."""
    place, start, stop = ranges_between(h, number, sought, low, high)
    pairs, rows = expanded(start, stop)
    return place[pairs], rows


def ranges_between(h: Ints, number: Ints, sought: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
    """Needles whose hash there is, each with the first row of its range and the one after the last; it may be empty."""
    start = first_not_below(h, sought)
    place = np.flatnonzero(start < len(h))
    place = place[h[start[place]] == sought[place]]
    start, stop = start[place], np.searchsorted(h, sought[place], side="right")
    start = lower_bound(number, low[place], start, stop)
    return place, start, lower_bound(number, high[place] + 1, start, stop)


class Search:
    """Needles, and what was found of them so far, newest layer first."""

    def __init__(self, sought: Ranges, schema: StateSchema, floor: int | None) -> None:
        self._sought, self._schema, self._floor = sought, schema, floor
        self._probes = Probes.of(sought.h)
        # By first bucket, so that those of a bucket are neighbours however many buckets a run has.
        self._order = np.argsort(sought.first_bucket, kind="stable")
        self._widest = int((sought.last_bucket - sought.first_bucket).max(initial=0))
        self._needles = [np.zeros(0, np.int64)]
        self._buckets = [np.zeros(0, np.int64)]
        self._live = [np.zeros(0, np.bool_)]
        self._pieces: list[list[pa.Array]] = [[pa.array([], field.type) for field in self._columns]]
        self.rows_examined = 0

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema([*self._schema.keys, *self._schema.values])

    def wants(self, info: RunInfo) -> bool:
        """Whether a needle is of the run's buckets: else it stays closed."""
        if not (info.buckets and self._sought.h.size):
            return False
        first, last = info.buckets[0][0], info.buckets[-1][0]
        overlap = (self._sought.first_bucket <= last) & (self._sought.last_bucket >= first)
        return bool(overlap.any()) and (self._floor is None or last >= self._floor)

    def visit(self, run: Run) -> bool:
        """Look into the buckets of a run; False where the Bloom filter excluded all needles."""
        slots = run.info.slot_lo, run.info.slot_hi
        inside = self._order[in_slots(self._sought.h[self._order], slots)]
        inside = inside[self._probes.at(inside).possibly_in(run.bloom)]
        if not inside.size:
            return False
        first, number = self._sought.first_bucket[inside], run.keys[0].to_numpy()
        low, high = int(first[0]), int(first[-1]) + self._widest
        found = [(np.zeros(0, np.int64),) * 3]
        for bucket, _ in run.info.buckets:
            if low <= bucket <= high and (self._floor is None or bucket >= self._floor):
                near = slice(*np.searchsorted(first, [bucket - self._widest, bucket + 1]))
                found.append(self._in_bucket(run, number, bucket, inside[near]))
        needles, rows, buckets = (np.concatenate(parts) for parts in zip(*found, strict=True))
        self.rows_examined += len(rows)
        if rows.size:
            run.check_keys(rows)
            run.check_values(rows)
            indices = pa.array(rows)
            self._needles.append(needles)
            self._buckets.append(buckets)
            self._live.append(np.ones(len(rows), np.bool_) if run.live is None else run.live[rows])
            self._pieces.append([column.take(indices) for column in (*run.keys, *run.values)])
        return True

    def _in_bucket(self, run: Run, number: Ints, bucket: int, needles: Ints) -> tuple[Ints, Ints, Ints]:
        sought = self._sought
        needles = needles[sought.last_bucket[needles] >= bucket]
        start, stop = run.slice(bucket)
        run.check_first_key(start, stop)
        place, row = rows_between(
            run.hashes(start, stop),
            number[start:stop],
            sought.h[needles],
            sought.low[needles],
            sought.high[needles],
        )
        return needles[place], row + start, np.full(len(row), bucket)

    def answer(self) -> Inside:
        """What exists: of each needle, bucket and key the row that was found first, unless it is a tombstone."""
        needle, bucket = np.concatenate(self._needles), np.concatenate(self._buckets)
        columns = [pa.concat_arrays(pieces) for pieces in zip(*self._pieces, strict=True)]
        keys = [column.to_numpy() for column in columns[: len(self._schema.keys)]]
        order = np.lexsort((*reversed(keys), bucket, needle))
        kept = order[_first_of_each([part[order] for part in (needle, bucket, *keys)])]
        kept = kept[np.concatenate(self._live)[kept]]
        indices = pa.array(kept)
        table = pa.table([column.take(indices) for column in columns], schema=self._columns)
        return Inside(needle[kept], bucket[kept], table)


def _first_of_each(columns: list[Ints]) -> Bools:
    """Of neighbours that agree in all columns, the first: a stable sort leaves the newest there."""
    first = np.zeros(len(columns[0]), np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    return first
