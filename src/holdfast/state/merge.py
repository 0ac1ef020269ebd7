"""Several consecutive layers as one, range of slots by range of slots.

Invariants:
- A merge says of every key what its input layers, read together, say of it.
- A tombstone goes only where no older layer remains that it could hide a row of.
- The ranges of a merge are disjoint and cover all slots of its input, so each can be written alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.state.gather import gather, newest
from holdfast.state.layer import LayerInfo, slot_borders
from holdfast.state.schema import StateSchema


def merge_runs(
    root: Path,
    schema: StateSchema,
    layers: Sequence[LayerInfo],
    slots: tuple[int, int],
    *,
    bottom: bool,
    floor: int | None,
) -> pa.Table:
    """The changes of `layers` (oldest first) in a range of slots; `bottom`: nothing older remains."""
    gathered = gather(root, schema, layers, slots, floor, None)
    return newest(gathered, schema, keep_tombstones=not bottom)


def merge_ranges(layers: Sequence[LayerInfo], rows_max: int) -> list[tuple[int, int]]:
    """Slot ranges of about `rows_max` input rows at most, told without opening a run."""
    runs = [run for layer in layers for run in layer.runs]
    if not runs:
        return []
    lo, hi = min(run.slot_lo for run in runs), max(run.slot_hi for run in runs)
    rows_per_slot = np.zeros(hi - lo)
    for run in runs:
        # Hashes are spread evenly, so a run's rows are taken to be spread evenly over its slots.
        rows_per_slot[run.slot_lo - lo : run.slot_hi - lo] += run.rows / (run.slot_hi - run.slot_lo)
    borders = [int(border) + lo for border in slot_borders(rows_per_slot, rows_max)]
    return list(pairwise(borders))
