"""A spine: what a stage's state is, as the layers of consecutive epochs, the newest row of a key winning.

Invariants:
- A tombstone ends the search for its key: nothing older shows through.
- Rows of buckets below the floor do not exist, whatever the layers hold.
- Cost follows what was asked: a lookup touches runs of its slots, and only rows whose hash it seeks;
  `rows` reads only the buckets it was asked for. The counters say so, and tests count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.core.errors import HoldfastError
from holdfast.state.between import Inside, Ranges, Search
from holdfast.state.canonical import Bools, Ints, ascends_in_order, in_slots, slot_of
from holdfast.state.everywhere import Matches, Sweep
from holdfast.state.gather import gather, newest, open_checked
from holdfast.state.layer import LayerInfo
from holdfast.state.run import RunInfo
from holdfast.state.schema import BUCKET, HASH, StateSchema, conform
from holdfast.state.search import Hunt


@dataclass(frozen=True)
class Found:
    """The answer to a lookup: aligned with the needles, values null where there is no row."""

    mask: Bools
    values: pa.Table


class Spine:
    """The state of one range of slots at one epoch, for one task."""

    def __init__(
        self,
        root: Path,
        schema: StateSchema,
        layers: Sequence[LayerInfo],
        slots: tuple[int, int],
        floor: int | None = None,
    ) -> None:
        self.root = root
        self.schema = schema
        self.layers = tuple(layers)
        self.slots = slots
        self.floor = floor
        # Rows compared with a needle or read by `rows`; runs visited, and those a Bloom filter excluded.
        self.rows_examined = 0
        self.runs_opened = 0
        self.runs_skipped_by_bloom = 0

    def lookup(self, needles: pa.Table) -> Found:
        """The newest values of each needle; needles stand by (bucket, hash), and may repeat."""
        needles = conform(needles, self.schema.needles)
        bucket: Ints = needles.column(BUCKET).chunk(0).to_numpy()
        h: Ints = needles.column(HASH).chunk(0).to_numpy()
        self._check(bucket, h)
        keys = [needles.column(name).chunk(0) for name in self.schema.keys.names]
        hunt = Hunt(bucket, h, keys, self.floor)
        for layer in reversed(self.layers):
            if hunt.done:
                break
            self._visit(layer, hunt)
        self.rows_examined += hunt.rows_examined
        return Found(*hunt.answer(self.schema.nullable_values))

    def lookup_everywhere(self, h: Ints, keys: Sequence[pa.Array]) -> Matches:
        """The rows that each key has in all buckets; keys stand by hash, each once."""
        self._check(np.zeros(len(h), np.int64), h)
        sweep = Sweep(h, keys, self.floor)
        for layer in reversed(self.layers):
            for info in layer.runs:
                if self._has_live_bucket(info) and sweep.wants(info):
                    self.runs_opened += 1
                    if not sweep.visit(open_checked(self.root, self.schema, info)):
                        self.runs_skipped_by_bloom += 1
        self.rows_examined += sweep.rows_examined
        return sweep.answer(self.schema.nullable_values)

    def lookup_between(self, sought: Ranges) -> Inside:
        """The rows of each needle's hash and buckets whose first key is in its range; needles in any order."""
        self._check_slots(sought.h)
        search = Search(sought, self.schema, self.floor)
        for layer in reversed(self.layers):
            for info in layer.runs:
                if info.overlaps(self.slots) and search.wants(info):
                    self.runs_opened += 1
                    if not search.visit(open_checked(self.root, self.schema, info)):
                        self.runs_skipped_by_bloom += 1
        self.rows_examined += search.rows_examined
        return search.answer()

    def rows(self, first_bucket: int | None = None, last_bucket: int | None = None) -> pa.Table:
        """All rows that exist in a range of buckets, both ends included, in canonical order."""
        lows = [bound for bound in (first_bucket, self.floor) if bound is not None]
        low = max(lows) if lows else None
        gathered = gather(self.root, self.schema, self.layers, self.slots, low, last_bucket)
        self.rows_examined += gathered.table.num_rows
        self.runs_opened += gathered.runs_opened
        return newest(gathered, self.schema, keep_tombstones=False)

    def count(self, last_bucket: int) -> int:
        """Rows in live buckets up to one, as they were written; told by the runs, if they are of these slots alone."""
        total = 0
        for info in (run for layer in self.layers for run in layer.runs if run.overlaps(self.slots)):
            if not info.buckets or info.buckets[0][0] > last_bucket or not self._has_live_bucket(info):
                continue
            run = open_checked(self.root, self.schema, info)
            start, stop = run.slices(self.floor, last_bucket)
            inside = info.within(self.slots)
            total += (
                stop - start
                if inside
                else int(np.count_nonzero(in_slots(run.hashes(start, stop), self.slots)))
            )
        return total

    def live_buckets(self) -> Ints:
        """Buckets at or above the floor that may have rows, ascending, told without opening a run."""
        runs = [run for layer in self.layers for run in layer.runs if run.overlaps(self.slots)]
        buckets = np.unique(np.array([bucket for run in runs for bucket, _ in run.buckets], np.int64))
        return buckets if self.floor is None else buckets[buckets >= self.floor]

    def _visit(self, layer: LayerInfo, hunt: Hunt) -> None:
        for info in layer.runs:
            if hunt.wants(info):
                self.runs_opened += 1
                if not hunt.visit(open_checked(self.root, self.schema, info)):
                    self.runs_skipped_by_bloom += 1
        hunt.end_layer()

    def _has_live_bucket(self, info: RunInfo) -> bool:
        return self.floor is None or (bool(info.buckets) and info.buckets[-1][0] >= self.floor)

    def _check_slots(self, h: Ints) -> None:
        slot = slot_of(h)
        if h.size and (slot.min() < self.slots[0] or slot.max() >= self.slots[1]):
            raise _misuse(f"needles of slots {slot.min()} to {slot.max()} sought in slots {self.slots}")

    def _check(self, bucket: Ints, h: Ints) -> None:
        self._check_slots(h)
        if not ascends_in_order(bucket, h):
            raise _misuse("needles are not sorted by bucket and hash")


def _misuse(message: str) -> HoldfastError:
    return HoldfastError(message, operation="lookup", hint="This is a mistake in the operator.")
