"""Rows of several layers brought together, and of each key the newest.

Invariants:
- Only rows of the slots and buckets asked for are read.
- Of rows with one bucket and key, that of the newest layer stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.core.errors import StateSchemaError
from holdfast.state.canonical import Bools, Ints, canonical_order, in_slots, same_as_next
from holdfast.state.layer import LayerInfo
from holdfast.state.run import Run, RunInfo, open_run
from holdfast.state.schema import BUCKET, HASH, LIVE, StateSchema, single, take_rows


@dataclass(frozen=True)
class Gathered:
    """Rows of all layers as one change table, oldest layer first, with each row's layer."""

    table: pa.Table
    age: Ints
    runs_opened: int


def open_checked(root: Path, schema: StateSchema, info: RunInfo) -> Run:
    """Open a run and make sure that it holds state of this schema."""
    run = open_run(root, info)
    if not run.schema.agrees_with(schema):
        raise StateSchemaError(
            f"{info.path} holds {run.schema.keys.names} -> {run.schema.values.names} of other names or types",
            operation="open run",
            hint="The stage's key or operator has changed: reset its state, or give the stage a new name.",
        )
    return run


def gather(
    root: Path,
    schema: StateSchema,
    layers: Sequence[LayerInfo],
    slots: tuple[int, int],
    first_bucket: int | None,
    last_bucket: int | None,
) -> Gathered:
    """Read the rows of these slots and buckets out of all layers."""
    tables, ages, opened = [schema.changes.empty_table()], [np.zeros(0, np.int64)], 0
    for age, layer in enumerate(layers):
        for info in layer.runs:
            if not (info.overlaps(slots) and _has_bucket(info, first_bucket, last_bucket)):
                continue
            run = open_checked(root, schema, info)
            opened += 1
            start, stop = run.slices(first_bucket, last_bucket)
            tables.append(_rows_of(run, schema, slots, start, stop))
            ages.append(np.full(tables[-1].num_rows, age))
    return Gathered(pa.concat_tables(tables), np.concatenate(ages), opened)


def newest(gathered: Gathered, schema: StateSchema, *, keep_tombstones: bool) -> pa.Table:
    """Of each bucket and key the newest row, in canonical order."""
    columns = {name: single(gathered.table.column(name)) for name in gathered.table.column_names}
    keys = [columns[name] for name in schema.keys.names]
    bucket: Ints = columns[BUCKET].to_numpy()
    h: Ints = columns[HASH].to_numpy()
    order = canonical_order(bucket, h, keys, gathered.age)
    indices = pa.array(order)
    repeated = same_as_next(bucket[order], h[order], [column.take(indices) for column in keys])
    keep: Bools = np.append(~repeated, True)[: len(order)]
    if not keep_tombstones:
        keep &= columns[LIVE].to_numpy(zero_copy_only=False)[order]
    return take_rows(pa.table(columns, schema=schema.changes), order[keep])


def _has_bucket(info: RunInfo, first_bucket: int | None, last_bucket: int | None) -> bool:
    return any(
        (first_bucket is None or bucket >= first_bucket) and (last_bucket is None or bucket <= last_bucket)
        for bucket, _ in info.buckets
    )


def _rows_of(run: Run, schema: StateSchema, slots: tuple[int, int], start: int, stop: int) -> pa.Table:
    h, bucket = run.hashes(start, stop), run.buckets(start, stop)
    live = np.ones(stop - start, np.bool_) if run.live is None else run.live[start:stop]
    if run.info.within(slots):
        run.check_slice(start, stop)
        body = [column.slice(start, stop - start) for column in (*run.keys, *run.values)]
    else:
        inside = np.flatnonzero(in_slots(h, slots))
        run.check_keys(inside + start)
        run.check_values(inside + start)
        h, bucket, live, indices = h[inside], bucket[inside], live[inside], pa.array(inside + start)
        body = [column.take(indices) for column in (*run.keys, *run.values)]
    return pa.table([pa.array(bucket), pa.array(h), pa.array(live), *body], schema=schema.changes)
