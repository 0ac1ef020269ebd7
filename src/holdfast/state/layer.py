"""A layer: the changed rows of consecutive epochs, cut at slot borders into runs of bounded size.

Invariants:
- The runs of a layer have disjoint slot ranges, so that a row of state is in at most one of them; those
  of one `write_layer` cover its slots without a gap.
- A layer holds a (bucket, key) at most once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import HoldfastError
from holdfast.state.canonical import Ints, canonical_order, same_as_next, slot_of
from holdfast.state.run import RunInfo, RunJson, write_run
from holdfast.state.schema import BUCKET, HASH, StateSchema, conform, take_rows


class LayerJson(TypedDict):
    """A `LayerInfo` in a manifest."""

    first: int
    last: int
    runs: list[RunJson]


@dataclass(frozen=True)
class LayerInfo:
    """What a manifest says of a layer: its epochs, both ends included, and its runs."""

    first: int
    last: int
    runs: tuple[RunInfo, ...]

    @property
    def rows(self) -> int:
        """Rows of all runs, tombstones included."""
        return sum(run.rows for run in self.runs)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(run.bytes for run in self.runs)

    def to_json(self) -> LayerJson:
        """Plain numbers, strings and lists."""
        return LayerJson(first=self.first, last=self.last, runs=[run.to_json() for run in self.runs])

    @classmethod
    def from_json(cls, data: LayerJson) -> LayerInfo:
        """What `to_json` gave."""
        return cls(data["first"], data["last"], tuple(RunInfo.from_json(run) for run in data["runs"]))


def write_layer(
    root: Path,
    prefix: str,
    changes: pa.Table,
    schema: StateSchema,
    slots: tuple[int, int],
    rows_max: int = limits.RUN_ROWS_MAX,
) -> tuple[RunInfo, ...]:
    """Write the changes of a task as runs `<prefix>-<i>.arrow`; no rows make no runs."""
    changes = conform(changes, schema.changes)
    if not changes.num_rows:
        return ()
    changes = _ordered(changes, schema)
    bucket, h = _column(changes, BUCKET), _column(changes, HASH)
    slot = slot_of(h)
    if slot.min() < slots[0] or slot.max() >= slots[1]:
        raise _misuse(f"rows of slots {slot.min()} to {slot.max()} written to slots {slots}")
    if same_as_next(bucket, h, [changes.column(name).chunk(0) for name in schema.keys.names]).any():
        raise _misuse("a bucket and key occur twice in one layer")
    borders = slot_borders(np.bincount(slot - slots[0], minlength=slots[1] - slots[0]), rows_max) + slots[0]
    changes, ends = _by_run(changes, bucket, slot, borders)
    runs = []
    for number, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = changes.slice(start, stop - start)
        lo, hi = int(borders[number]), int(borders[number + 1])
        runs.append(write_run(root, f"{prefix}-{number}.arrow", part, schema, lo, hi))
    return tuple(runs)


def slot_borders(rows_per_slot: npt.NDArray[np.int64] | npt.NDArray[np.float64], rows_max: int) -> Ints:
    """Borders between slots that cut the rows in about equal parts of about `rows_max` at most.

    >>> slot_borders(np.array([5, 5, 5, 5]), 10)
    array([0, 2, 4])
    """
    total = np.cumsum(rows_per_slot)
    parts = max(1, int(np.ceil(total[-1] / rows_max)))
    goals = total[-1] * np.arange(1, parts) / parts
    inner = np.searchsorted(total, goals) + 1
    # A border behind the last row would make a run without rows.
    inner = inner[total[inner - 1] < total[-1]]
    return np.unique(np.concatenate([[0], inner, [len(total)]]))


def _ordered(changes: pa.Table, schema: StateSchema) -> pa.Table:
    bucket, h = _column(changes, BUCKET), _column(changes, HASH)
    order = canonical_order(bucket, h, [changes.column(name).chunk(0) for name in schema.keys.names])
    if (order[1:] > order[:-1]).all():
        return changes
    return take_rows(changes, order)


def _by_run(changes: pa.Table, bucket: Ints, slot: Ints, borders: Ints) -> tuple[pa.Table, list[int]]:
    """The rows regrouped run by run, and where each run ends."""
    run = (np.searchsorted(borders, slot, side="right") - 1).astype(np.uint16)
    if len(borders) > 2 and bucket[0] != bucket[-1]:
        changes = take_rows(changes, np.argsort(run, kind="stable"))
    return changes, [int(end) for end in np.cumsum(np.bincount(run, minlength=len(borders) - 1))]


def _column(table: pa.Table, name: str) -> Ints:
    column: Ints = table.column(name).chunk(0).to_numpy()
    return column


def _misuse(message: str) -> HoldfastError:
    return HoldfastError(message, operation="write layer", hint="This is a mistake in the operator.")
