"""State whose keys move through slices of time: a key's bucket is the slice in which it ends, unless it moves on.

Invariants: a bucket is dropped when the watermark has passed all of it; in the slice that the watermark stands in,
what has ended is read by its own end and leaves tombstones; of a bucket and key, a layer holds one row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.protocols.watermark import Timing
from holdfast.state.canonical import canonical_order, same_as_next
from holdfast.state.schema import BUCKET, HASH, LIVE, StateSchema, single, take_rows
from holdfast.state.spine import Spine


def or_lowest(watermark_us: int | None) -> int:
    """A watermark to compare with; before the first, nothing has ended."""
    return int(np.iinfo(np.int64).min) if watermark_us is None else watermark_us


def ended(spine: Spine, timing: Timing, end: str, watermark_us: int | None) -> pa.Table:
    """The rows whose end the watermark has passed: whole slices, and of the one it stands in, what has ended."""
    if watermark_us is None:
        return spine.schema.changes.empty_table()
    rows = spine.rows(last_bucket=timing.closing(watermark_us))
    return take_rows(rows, np.flatnonzero(np.asarray(single(rows[end])) < watermark_us))


def tombstones(rows: pa.Table, watermark_us: int | None) -> pa.Table:
    """What hides rows that have ended, unless the floor hides their bucket anyway."""
    above = np.asarray(single(rows[BUCKET])) >= or_lowest(watermark_us)
    left = take_rows(rows, np.flatnonzero(above))
    return left.set_column(
        left.schema.get_field_index(LIVE), LIVE, pa.repeat(pa.scalar(False), left.num_rows)
    )


def layer_of(schema: StateSchema, live: pa.Table, *gone: pa.Table) -> pa.Table:
    """State rows and tombstones in canonical order; of a bucket and key, what lives now and not what was."""
    table = pa.concat_tables([live, *(one.cast(live.schema) for one in gone)])
    bucket, h = (np.asarray(single(table[name])) for name in (BUCKET, HASH))
    keys = [single(table[name]) for name in schema.keys.names]
    order = canonical_order(bucket, h, keys, np.arange(len(h)))
    ordered = take_rows(table, order)
    keys = [single(ordered[name]) for name in schema.keys.names]
    repeated = same_as_next(bucket[order], h[order], keys)
    return take_rows(ordered, np.flatnonzero(np.append(True, ~repeated)[: len(order)]))
