"""One lookup under way: which needles are still sought, and where those found lie.

Invariants:
- Needles stay in canonical order, so that those of a bucket and of a slot range are neighbours.
- A needle is decided once, by the first run that holds its key; runs are visited newest layer first.
- A hash narrows down, a key decides: a needle is compared with every row of its hash until one matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.core import limits
from holdfast.state.bloom import Probes
from holdfast.state.canonical import Bools, Ints, group_starts, in_slots, same_at, slot_floor, slot_of
from holdfast.state.locate import first_not_below, lower_bound
from holdfast.state.run import Run, RunInfo

# Where needles outnumber a run's rows by this much, it is cheaper to search the needles for the rows.
_NEEDLES_PER_ROW_MAX = 4

# Where a bucket has fewer needles than this, all buckets are searched together: a call of NumPy for each
# would cost more than the search itself.
_NEEDLES_PER_SPAN_MIN = 256

# Needles that tell whether a run's Bloom filter is worth asking: the bottom of a spine holds most keys.
_BLOOM_SAMPLE = 32


@dataclass(frozen=True)
class _Candidates:
    """Pairs of a needle (its place in `pending`) and a row of a run, and where the row's bucket ends."""

    place: Ints
    row: Ints
    stop: Ints

    def only(self, mask: Bools) -> _Candidates:
        return _Candidates(self.place[mask], self.row[mask], self.stop[mask])


class Hunt:
    """The needles of one lookup and what was found of them."""

    def __init__(self, bucket: Ints, h: Ints, keys: Sequence[pa.Array], floor: int | None) -> None:
        self._bucket, self._h, self._keys = bucket, h, keys
        self._probes = Probes.of(h)
        self._first = 0 if floor is None else int(np.searchsorted(bucket, floor))
        self._pending = np.arange(self._first, len(h))
        self._source = np.full(len(h), -1, np.int64)
        self._pieces: list[list[pa.Array]] = []
        self._taken = 0
        self.rows_examined = 0
        self._settle()

    @property
    def done(self) -> bool:
        """Whether every needle is decided."""
        return not self._pending.size

    def wants(self, info: RunInfo) -> bool:
        """Whether a pending needle is of the run's slots, and one of its buckets: else it stays closed."""
        if not any(bucket in self._buckets for bucket, _ in info.buckets):
            return False
        if len(self._spans) == 1:
            lo, hi = _narrowed(self._pending_h, 0, len(self._pending_h), info)
            return lo < hi
        below = self._pending_below()
        return bool(below[info.slot_lo] < below[info.slot_hi])

    def visit(self, run: Run) -> bool:
        """Look for the pending needles in a run; False where the Bloom filter excluded them all."""
        candidates = self._candidates(run)
        if candidates is None:
            return True
        if not candidates.place.size:
            return False
        places, rows = self._confirm(run, self._with_equal_hash(run, candidates))
        self._decided[places] = True
        if run.live is not None:
            alive = run.live[rows]
            places, rows = places[alive], rows[alive]
        if rows.size:
            self._take(run, places, rows)
        return True

    def end_layer(self) -> None:
        """Go on with what this layer did not decide; the runs of a layer exclude each other."""
        if self._decided.any():
            self._pending = self._pending[~self._decided]
            self._settle()

    def answer(self, values: pa.Schema) -> tuple[Bools, pa.Table]:
        """Which needles have a row, and their values."""
        mask = self._source >= 0
        if not self._pieces:
            return mask, pa.table([pa.nulls(len(mask), field.type) for field in values], schema=values)
        # Found in one place, all of them and in order: the piece is the answer as it is.
        whole = len(self._pieces) == 1 and self._taken == len(mask) and _ascends_by_one(self._source)
        columns = [pa.concat_arrays(pieces) for pieces in zip(*self._pieces, strict=True)]
        if not whole:
            indices = pa.array(self._source, mask=None if mask.all() else ~mask)
            columns = [column.take(indices) for column in columns]
        return mask, pa.table(columns, schema=values)

    def _settle(self) -> None:
        self._pending_h = self._h[self._pending]
        self._pending_probes = self._probes.at(self._pending)
        self._decided = np.zeros(len(self._pending), np.bool_)
        self._below: Ints | None = None
        bucket = self._bucket[self._pending]
        starts = group_starts(bucket)
        stops = np.append(starts[1:], len(bucket))
        self._spans = [
            (int(bucket[start]), int(start), int(stop))
            for start, stop in zip(starts, stops[: len(starts)], strict=True)
        ]
        self._buckets = {bucket for bucket, _, _ in self._spans}

    def _pending_below(self) -> Ints:
        """How many pending needles lie below each slot, over all buckets."""
        if self._below is None:
            counts = np.bincount(slot_of(self._pending_h), minlength=limits.SLOTS)
            self._below = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return self._below

    def _candidates(self, run: Run) -> _Candidates | None:
        """Needles that the run may hold; None where none is in its buckets and slots."""
        if len(self._spans) > 1 and len(self._pending) < _NEEDLES_PER_SPAN_MIN * len(self._spans):
            return self._near_all(run)
        parts = [part for part in (self._near(run, *span) for span in self._spans) if part is not None]
        return _joined(parts) if parts else None

    def _near_all(self, run: Run) -> _Candidates | None:
        """What `_near` finds, for many buckets of few needles at once."""
        counts = [hi - lo for _, lo, hi in self._spans]
        bounds = np.array([run.slice(bucket) for bucket, _, _ in self._spans])
        start, stop = np.repeat(bounds, counts, axis=0).T
        inside = (start < stop) & in_slots(self._pending_h, (run.info.slot_lo, run.info.slot_hi))
        if not inside.any():
            return None
        place = np.flatnonzero(inside)
        place = place[self._pending_probes.at(place).possibly_in(run.bloom)]
        start, stop = start[place], stop[place]
        if place.size:
            run.hashes(int(start.min()), int(stop.max()))
        row = lower_bound(run.h, self._pending_h[place], start, stop)
        return _Candidates(place, row, stop)

    def _near(self, run: Run, bucket: int, lo: int, hi: int) -> _Candidates | None:
        """Needles of a bucket that the run may hold, with the first row of an equal or higher hash."""
        start, stop = run.slice(bucket)
        if start == stop:
            return None
        lo, hi = _narrowed(self._pending_h, lo, hi, run.info)
        if lo == hi:
            return None
        needles, hashes = self._pending_h[lo:hi], run.hashes(start, stop)
        if len(needles) > _NEEDLES_PER_ROW_MAX * len(hashes):
            chosen = _needles_of(needles, hashes)
        else:
            chosen = self._possible(run, lo, hi)
        row = first_not_below(hashes, needles[chosen]) + start
        return _Candidates(chosen + lo, row, np.full(len(row), stop))

    def _possible(self, run: Run, lo: int, hi: int) -> Ints:
        """Needles that the Bloom filter lets through; where a sample shows that it stops few, all of them."""
        sample = self._pending_probes.at(slice(lo, hi, max(1, (hi - lo) // _BLOOM_SAMPLE)))
        if 2 * np.count_nonzero(sample.possibly_in(run.bloom)) > len(sample.high):
            return np.arange(hi - lo)
        return np.flatnonzero(self._pending_probes.at(slice(lo, hi)).possibly_in(run.bloom))

    def _with_equal_hash(self, run: Run, pairs: _Candidates) -> _Candidates:
        pairs = pairs.only(pairs.row < pairs.stop)
        return pairs.only(run.h[pairs.row] == self._pending_h[pairs.place])

    def _confirm(self, run: Run, pairs: _Candidates) -> tuple[Ints, Ints]:
        """Of pairs with equal hashes, those with equal keys; each round tries the next row of the hash."""
        places, rows = [], []
        while pairs.place.size:
            self.rows_examined += pairs.place.size
            run.check_keys(pairs.row)
            equal = same_at(self._keys, self._pending[pairs.place], run.keys, pairs.row)
            places.append(pairs.place[equal])
            rows.append(pairs.row[equal])
            left = pairs.only(~equal)
            pairs = self._with_equal_hash(run, _Candidates(left.place, left.row + 1, left.stop))
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *places]), np.concatenate([none, *rows])

    def _take(self, run: Run, places: Ints, rows: Ints) -> None:
        self._source[self._pending[places]] = np.arange(self._taken, self._taken + len(rows))
        self._taken += len(rows)
        run.check_values(rows)
        if _ascends_by_one(rows):
            self._pieces.append([column.slice(int(rows[0]), len(rows)) for column in run.values])
        else:
            indices = pa.array(rows)
            self._pieces.append([column.take(indices) for column in run.values])


def _joined(parts: list[_Candidates]) -> _Candidates:
    if len(parts) == 1:
        return parts[0]
    return _Candidates(
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.row for part in parts]),
        np.concatenate([part.stop for part in parts]),
    )


def _narrowed(h: Ints, lo: int, hi: int, info: RunInfo) -> tuple[int, int]:
    """The part of sorted hashes that lies in a run's slots."""
    start = lo if info.slot_lo == 0 else lo + int(np.searchsorted(h[lo:hi], slot_floor(info.slot_lo)))
    if info.slot_hi == limits.SLOTS:
        return start, hi
    return start, lo + int(np.searchsorted(h[lo:hi], slot_floor(info.slot_hi)))


def _needles_of(needles: Ints, hashes: Ints) -> Ints:
    """Where sorted needles equal one of a few sorted hashes."""
    distinct = hashes[group_starts(hashes)]
    first = np.searchsorted(needles, distinct)
    count = np.searchsorted(needles, distinct, side="right") - first
    skipped = first - (np.cumsum(count) - count)
    return np.repeat(skipped, count) + np.arange(count.sum())


def _ascends_by_one(rows: Ints) -> bool:
    return bool(rows[-1] - rows[0] == len(rows) - 1 and (rows[1:] - rows[:-1] == 1).all())
