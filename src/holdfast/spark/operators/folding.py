"""The aggregates of one stage together: their Spark SQL, what is stored of them, and how it is merged.

Columns of all aggregates stand side by side, in the order in which the user named them; each aggregate takes
its own off the lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.spark.keys import HASH as KEY_HASH
from holdfast.spark.keys import BoundKeys
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.contract import Direct
from holdfast.spark.operators.view import ViewColumn
from holdfast.state.canonical import Ints, canonical_order, group_starts, same_as_next
from holdfast.state.schema import BUCKET, HASH, single
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class BoundAggregate:
    """One aggregate with its types: what Spark computes per epoch, and what accumulates it."""

    sql: tuple[str, ...]
    accumulator: Accumulator
    field: t.StructField  # of the result
    function: str
    expression: str
    by: str | None = None

    @property
    def of_every_row(self) -> bool:
        """Whether it counts rows, whatever is in them."""
        return self.sql == ("count(1)",)

    @property
    def columns(self) -> list[str]:
        """What `lift` takes of a row, if it is columns."""
        written = [] if self.of_every_row else [self.by, self.expression]
        return [sql for sql in written if sql is not None]

    def lifts(self, kinds: Mapping[str, pa.DataType]) -> bool:
        """Whether rows whose columns have these types can be lifted."""
        if not all(name in kinds for name in self.columns):
            return False
        of_columns = [kinds[name] for name in self.columns]
        return self.of_every_row or self.accumulator.lifts(
            of_columns[0] if self.by is None else pa.struct(list(zip("tx", of_columns, strict=True)))
        )

    def lift(self, rows: pa.Table) -> Columns:
        """The partial values of single rows."""
        columns = [single(rows[name]) for name in self.columns]
        if self.of_every_row:
            columns = [pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows)]
        elif self.by is not None:
            columns = [pa.StructArray.from_arrays(columns, ["t", "x"])]
        return self.accumulator.lift(columns[0])


@dataclass(frozen=True)
class Folding:
    """All aggregates of a stage."""

    aggregates: tuple[BoundAggregate, ...]

    @property
    def partials(self) -> pa.Schema:
        """What Spark gives per epoch: p0, p1, ..."""
        kinds = [kind for aggregate in self.aggregates for kind in aggregate.accumulator.partials]
        return pa.schema([(f"p{i}", kind) for i, kind in enumerate(kinds)])

    @property
    def stored(self) -> pa.Schema:
        """What the state keeps: v0, v1, ..."""
        kinds = [kind for aggregate in self.aggregates for kind in aggregate.accumulator.stored]
        return pa.schema([(f"v{i}", kind) for i, kind in enumerate(kinds)])

    @property
    def columns(self) -> list[Column]:
        """The Spark columns of the partial values."""
        sql = [sql for aggregate in self.aggregates for sql in aggregate.sql]
        return [f.expr(text).alias(f"p{i}") for i, text in enumerate(sql)]

    @property
    def fields(self) -> list[t.StructField]:
        """The results, as Spark types them."""
        return [aggregate.field for aggregate in self.aggregates]

    @property
    def view(self) -> list[ViewColumn]:
        """The results by name, each finished from the stored columns that are its own."""
        columns, names = [], self.stored.names
        for aggregate in self.aggregates:
            acc, field = aggregate.accumulator, aggregate.field
            mine, names = names[: len(acc.stored)], names[len(acc.stored) :]
            kind = field.dataType.simpleString()
            columns.append(
                ViewColumn(field.name, kind, acc.final, tuple(mine), aggregate.function, options=acc.options)
            )
        return columns

    @property
    def description(self) -> str:
        """Names, functions and types, but not the expressions: what must not change while there is state."""
        parts = ((aggregate.field, aggregate.function) for aggregate in self.aggregates)
        return ", ".join(f"{field.name}={what}:{field.dataType.simpleString()}" for field, what in parts)

    def merge(self, old: Columns, new: Columns) -> Columns:
        """Stored values after an epoch: `old` as stored, null where there was nothing, `new` as Spark gave it."""
        stored: Columns = []
        for acc in (aggregate.accumulator for aggregate in self.aggregates):
            mine, news = len(acc.stored), len(acc.partials)
            stored += acc.merge(old[:mine], new[:news])
            old, new = old[mine:], new[news:]
        return stored

    def upsert(self, rows: pa.Table, spine: Spine) -> tuple[pa.Table, int]:
        """Merge an epoch's rows, in canonical order, into the state; the changed state rows, and how many are new."""
        state = spine.schema
        found = spine.lookup(rows.select(state.needles.names))
        stored = self.merge(
            [single(column) for column in found.values.columns],
            [single(rows[name]) for name in self.partials.names],
        )
        live = pa.repeat(pa.scalar(True), rows.num_rows)
        keys = [single(rows[name]) for name in state.keys.names]
        layer = pa.table([single(rows[BUCKET]), single(rows[HASH]), live, *keys, *stored], state.changes)
        return layer, rows.num_rows - int(np.count_nonzero(found.mask))

    def columns_of(self, kinds: Mapping[str, pa.DataType]) -> list[str] | None:
        """The input columns that `lift` needs, None if an aggregate must be computed by Spark SQL."""
        if not all(aggregate.lifts(kinds) for aggregate in self.aggregates):
            return None
        return [name for aggregate in self.aggregates for name in aggregate.columns]

    def lift(self, rows: pa.Table) -> Columns:
        """The partial values of single rows; theirs are the types of stored ones."""
        return [part for aggregate in self.aggregates for part in aggregate.lift(rows)]

    def fold(self, rows: pa.Table, bucket: Ints, keys: BoundKeys) -> pa.Table:
        """Input rows with their hash as one row per bucket and key, in canonical order."""
        h = np.asarray(single(rows[KEY_HASH]))
        columns = [single(rows[name]) for name in keys.names]
        order = canonical_order(bucket, h, columns)
        bucket, h, columns = bucket[order], h[order], _taken(columns, order)
        begins = np.append(True, ~same_as_next(bucket, h, columns))[: len(order)]
        values = self.reduce(np.cumsum(begins) - 1, _taken(self.lift(rows), order))
        first = np.flatnonzero(begins)
        head = [pa.array(bucket[first]), pa.array(h[first])]
        names = [BUCKET, HASH, *keys.stored.names, *self.partials.names]
        return pa.table([*head, *_taken(columns, first), *values], names=names)

    def begin(self, new: Columns) -> Columns:
        """Stored values where there was nothing before."""
        rows = len(new[0])
        return self.merge([pa.nulls(rows, field.type) for field in self.stored], new)

    def finish(self, stored: Columns) -> Columns:
        """The results."""
        results = []
        for acc in (aggregate.accumulator for aggregate in self.aggregates):
            mine = len(acc.stored)
            results.append(acc.finish(stored[:mine]))
            stored = stored[mine:]
        return results

    def reduce(self, group: Ints, stored: Columns) -> Columns:
        """One row of stored values a group; rows of a group are neighbours, and keep their order.

        Groups of one row stand aside.
        """
        starts = group_starts(group)
        sizes = np.diff(np.append(starts, len(group)))
        several = sizes > 1
        if not several.any():
            return stored
        rows = np.flatnonzero(np.repeat(several, sizes))
        combined = self._reduced(group[rows], _taken(stored, rows))
        of_group = np.empty(len(starts), np.int64)
        of_group[~several] = starts[~several]
        of_group[several] = len(group) + np.arange(np.count_nonzero(several))
        return [
            pa.concat_arrays([single_rows, groups]).take(pa.array(of_group))
            for single_rows, groups in zip(stored, combined, strict=True)
        ]

    def _reduced(self, group: Ints, stored: Columns) -> Columns:
        """Each aggregate by itself if it takes a group at once; the others together."""
        starts = group_starts(group)
        number = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(group))))
        others = Folding(tuple(one for one in self.aggregates if not one.accumulator.at_once))
        reduced: list[Columns | None] = []
        left: Columns = []
        for acc in (aggregate.accumulator for aggregate in self.aggregates):
            mine, stored = stored[: len(acc.stored)], stored[len(acc.stored) :]
            reduced.append(acc.reduce(number, mine) if acc.at_once else None)
            left += [] if acc.at_once else mine
        left = others._paired(group, left)
        for i, acc in enumerate(aggregate.accumulator for aggregate in self.aggregates):
            if not acc.at_once:
                reduced[i], left = left[: len(acc.stored)], left[len(acc.stored) :]
        return [column for columns in reduced for column in columns or ()]

    def _paired(self, group: Ints, stored: Columns) -> Columns:
        """Combine neighbours two by two: the number of passes is the logarithm of the largest group."""
        while stored and len(starts := group_starts(group)) < len(group):
            rank = np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))
            first = rank % 2 == 0
            paired = first & np.append(group[1:] == group[:-1], False)
            pairs, alone = np.flatnonzero(paired), np.flatnonzero(first & ~paired)
            combined = self._combine(_taken(stored, pairs), _taken(stored, pairs + 1))
            order = np.argsort(np.concatenate([pairs, alone]))
            stored = _taken(
                [
                    pa.concat_arrays([left, right])
                    for left, right in zip(combined, _taken(stored, alone), strict=True)
                ],
                order,
            )
            group = group[first]
        return stored

    def _combine(self, left: Columns, right: Columns) -> Columns:
        stored: Columns = []
        for acc in (aggregate.accumulator for aggregate in self.aggregates):
            mine = len(acc.stored)
            stored += acc.combine(left[:mine], right[:mine])
            left, right = left[mine:], right[mine:]
        return stored


def direct_of(
    keys: BoundKeys, folding: Folding, columns: pa.Schema, others: Sequence[str] = ()
) -> Direct | None:
    """How a task takes an aggregate's rows itself, if all it needs are columns of types that it knows.

    Without keys one task would take all rows; Spark has them aggregated by all tasks before.
    """
    kinds = {field.name: field.type for field in columns}
    needed = folding.columns_of(kinds)
    if needed is None or not keys.names or not keys.hashable:
        return None
    return Direct(keys.names, (tuple(dict.fromkeys([*keys.names, *needed, *others])),))


def _taken(columns: Columns, rows: Ints) -> Columns:
    indices = pa.array(rows)
    return [column.take(indices) for column in columns]
