"""The end of substreams inside an operator: where the state of a label is, and what is left of it afterwards.

Invariants: a state row that ends with its substream lies in the bucket of its label, so an end reads that bucket and
nothing else; labels that share a bucket are told apart by the key; what has ended leaves tombstones, because buckets of
labels have no order that a floor could rise in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.flow.substreams import SUBSTREAM
from holdfast.spark.hashing import hash_columns
from holdfast.state.canonical import Ints
from holdfast.state.schema import BUCKET, LIVE, single
from holdfast.state.spine import Spine


def label_buckets(labels: pa.Array) -> Ints:
    """The bucket of each label: a number made of it."""
    encoded = labels.dictionary_encode()
    if not len(encoded.dictionary):
        return np.zeros(len(labels), np.int64)
    distinct = hash_columns([encoded.dictionary])
    return distinct[np.asarray(encoded.indices.fill_null(0))]


def ended_rows(spine: Spine, key: str, labels: Sequence[str]) -> pa.Table:
    """The state rows of substreams that have ended; `key` is the state's column of the label."""
    parts = [spine.schema.changes.empty_table()]
    if labels:
        wanted = pa.array(labels, pa.string())
        for bucket in np.unique(label_buckets(wanted)):
            rows = spine.rows(first_bucket=int(bucket), last_bucket=int(bucket))
            parts.append(rows.filter(pc.is_in(single(rows[key]), value_set=wanted)))
    return pa.concat_tables(parts).combine_chunks()


def tombstones_of(rows: pa.Table) -> pa.Table:
    """What hides state rows that have ended."""
    dead = pa.repeat(pa.scalar(False), rows.num_rows)
    return rows.set_column(rows.schema.get_field_index(LIVE), LIVE, dead)


def last_buckets(rows: pa.Table, key: str) -> dict[str, int]:
    """By label, the last bucket that state rows of it are in."""
    found = rows.select([key, BUCKET]).group_by(key).aggregate([(BUCKET, "max")])
    labels = check_labels(single(found[key]))
    return dict(zip(labels, np.asarray(single(found[f"{BUCKET}_max"])).tolist(), strict=True))


def labels_of(rows: pa.Table | pa.RecordBatch) -> list[str]:
    """The different labels of rows that are on their way out."""
    return check_labels(pc.unique(rows.column(SUBSTREAM)))


def check_labels(distinct: pa.Array) -> list[str]:
    """Labels for a manifest, which has room for a bounded number of them, and none for null."""
    if distinct.null_count:
        raise FlowError(
            f"rows have no label in the column {SUBSTREAM!r}",
            operation="label",
            hint=f"Let the column {SUBSTREAM!r} pass as it is, or drop it.",
        )
    if len(distinct) > limits.LABELS_PER_SEGMENT_MAX:
        raise FlowError(
            f"a task's rows of one epoch have {len(distinct):,} labels, more than {limits.LABELS_PER_SEGMENT_MAX:,}",
            operation="label",
            hint="Label coarser things: a substream is a window, a batch or a tenant's day, not a row.",
        )
    found: list[str] = np.asarray(distinct).tolist()
    return found
