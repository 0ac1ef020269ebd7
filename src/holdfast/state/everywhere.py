"""Looking a key up in every bucket at once: for operators whose keys move between buckets, or live in several.

Invariants:
- Of a bucket and key the newest row decides, and a tombstone hides what is older, as in a lookup by bucket.
- A run's Bloom filter is asked once a needle, however many buckets the run has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.core import limits
from holdfast.state.bloom import Probes
from holdfast.state.canonical import Ints, in_slots, same_at, slot_floor
from holdfast.state.locate import first_not_below
from holdfast.state.run import Run, RunInfo


@dataclass(frozen=True)
class Matches:
    """Rows found: which needle each is of, its bucket and its values; sorted by needle, then bucket."""

    needle: Ints
    bucket: Ints
    values: pa.Table


class Sweep:
    """Needles in order of their hash, each once, and what was found of them so far, newest layer first."""

    def __init__(self, h: Ints, keys: Sequence[pa.Array], floor: int | None) -> None:
        self._h, self._keys, self._floor = h, keys, floor
        self._probes = Probes.of(h)
        self._needles: list[Ints] = []
        self._buckets: list[Ints] = []
        self._live: list[np.ndarray] = []
        self._pieces: list[list[pa.Array]] = []
        self.rows_examined = 0

    def wants(self, info: RunInfo) -> bool:
        """Whether a needle is of the run's slots: else it stays closed."""
        lo, hi = slot_floor(info.slot_lo), slot_floor(info.slot_hi)
        after = len(self._h) if info.slot_hi >= limits.SLOTS else int(np.searchsorted(self._h, hi))
        return bool(np.searchsorted(self._h, lo) < after)

    def visit(self, run: Run) -> bool:
        """Look for all needles in all buckets of a run; False where the Bloom filter excluded them all."""
        inside = np.flatnonzero(in_slots(self._h, (run.info.slot_lo, run.info.slot_hi)))
        inside = inside[self._probes.at(inside).possibly_in(run.bloom)]
        if not inside.size:
            return False
        for bucket, _ in run.info.buckets:
            if self._floor is None or bucket >= self._floor:
                self._visit_bucket(run, bucket, inside)
        return True

    def _visit_bucket(self, run: Run, bucket: int, needles: Ints) -> None:
        start, stop = run.slice(bucket)
        row = first_not_below(run.hashes(start, stop), self._h[needles]) + start
        while True:
            there = row < stop
            needles, row = needles[there], row[there]
            equal = run.h[row] == self._h[needles]
            needles, row = needles[equal], row[equal]
            if not needles.size:
                return
            self.rows_examined += needles.size
            run.check_keys(row)
            found = same_at(self._keys, needles, run.keys, row)
            if found.any():
                self._take(run, bucket, needles[found], row[found])
            needles, row = needles[~found], row[~found] + 1

    def _take(self, run: Run, bucket: int, needles: Ints, rows: Ints) -> None:
        self._needles.append(needles)
        self._buckets.append(np.full(len(needles), bucket))
        self._live.append(np.ones(len(rows), np.bool_) if run.live is None else run.live[rows])
        run.check_values(rows)
        indices = pa.array(rows)
        self._pieces.append([column.take(indices) for column in run.values])

    def answer(self, values: pa.Schema) -> Matches:
        """What exists: of each needle and bucket the row that was found first, unless it is a tombstone."""
        if not self._pieces:
            none = np.zeros(0, np.int64)
            return Matches(none, none, values.empty_table())
        needle, bucket = np.concatenate(self._needles), np.concatenate(self._buckets)
        order = np.lexsort((np.arange(len(needle)), bucket, needle))
        first = np.ones(len(order), np.bool_)
        first[1:] = (np.diff(needle[order]) != 0) | (np.diff(bucket[order]) != 0)
        kept = order[first & np.concatenate(self._live)[order]]
        indices = pa.array(kept)
        columns = [pa.concat_arrays(pieces).take(indices) for pieces in zip(*self._pieces, strict=True)]
        return Matches(needle[kept], bucket[kept], pa.table(columns, schema=values))
