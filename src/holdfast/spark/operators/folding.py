"""The aggregates of one stage together: their Spark SQL, what is stored of them, and how it is merged.

Columns of all aggregates stand side by side, in the order in which the user named them; each aggregate takes
its own off the lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.aggregates import Aggregate, DistinctCount
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH as KEY_HASH
from holdfast.spark.keys import BoundKeys, has_digests
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.accumulators import accumulator, partials
from holdfast.spark.operators.contract import Direct
from holdfast.spark.operators.view import ViewColumn
from holdfast.state.canonical import Ints, canonical_order, group_starts, same_as_next
from holdfast.state.schema import BUCKET, HASH, single
from holdfast.state.spine import Spine

# What Spark says of aggregates, window functions and generators in a filter.
_NOT_OF_A_ROW = ("INVALID_WHERE_CONDITION", "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE", "UNSUPPORTED_GENERATOR")


@dataclass(frozen=True)
class BoundAggregate:
    """One aggregate with its types: what Spark computes per epoch, and what accumulates it."""

    sql: tuple[str, ...]
    accumulator: Accumulator
    field: t.StructField  # of the result
    function: str
    expression: str

    @property
    def of_every_row(self) -> bool:
        """Whether it counts rows, whatever is in them."""
        return self.sql == ("count(1)",)


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
            columns.append(ViewColumn(field.name, kind, acc.final, tuple(mine), aggregate.function))
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
        needed = []
        for aggregate in self.aggregates:
            if aggregate.of_every_row:
                continue
            kind = kinds.get(aggregate.expression)
            if kind is None or not aggregate.accumulator.lifts(kind):
                return None
            needed.append(aggregate.expression)
        return needed

    def lift(self, rows: pa.Table) -> Columns:
        """The partial values of single rows; theirs are the types of stored ones."""
        ones = pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows)
        columns = (ones if one.of_every_row else single(rows[one.expression]) for one in self.aggregates)
        pairs = zip(self.aggregates, columns, strict=True)
        return [part for one, column in pairs for part in one.accumulator.lift(column)]

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

        Neighbours are combined two by two, so the number of passes is the logarithm of the largest group. Groups
        of one row stand aside meanwhile.
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
        while len(starts := group_starts(group)) < len(group):
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


def bind_folding(
    stage: str, df: DataFrame, aggregates: Sequence[tuple[str, Aggregate]], ansi: bool
) -> Folding:
    """Work out the types of aggregates over a DataFrame that has the input's schema."""
    return Folding(tuple(_bind_one(stage, df, name, aggregate, ansi) for name, aggregate in aggregates))


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


def _typed(stage: str, df: DataFrame, name: str, expressions: list[str]) -> t.StructType:
    """The types that Spark gives to aggregate expressions."""
    with _explained(stage, df, name):
        return df.agg(*(f.expr(sql).alias(f"c{i}") for i, sql in enumerate(expressions))).schema


@contextmanager
def _explained(stage: str, df: DataFrame, name: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        raise PlanError(
            f"aggregate {name!r} cannot be computed: {error.getMessage() or error}",
            operation="bind",
            stage=stage,
            hint=f"The columns are {', '.join(df.columns)}.",
        ) from error


def _check_row_wise(stage: str, df: DataFrame, name: str, aggregate: Aggregate) -> None:
    """Refuse what is not an expression of single rows: Spark allows none of that in a filter."""
    written = [sql for sql in (aggregate.expression, aggregate.by) if sql and sql.strip() != "*"]
    with _explained(stage, df, name):
        try:
            _ = [df.where(f"({sql}) is null").schema for sql in written]
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith(_NOT_OF_A_ROW):
                raise
            raise PlanError(
                f"aggregate {name!r} = {aggregate.sql()} is of an expression that looks at several rows, or makes several",
                operation="bind",
                stage=stage,
                hint="Aggregate expressions of single rows. What another aggregate, a window function or a generator"
                " gives comes from a stage, or a transform with explode, before this one.",
            ) from error


def _check_values(stage: str, df: DataFrame, name: str, aggregate: DistinctCount) -> None:
    """Refuse values that are equal although their digests differ, or the other way round."""
    with _explained(stage, df, name):
        kinds = [field.dataType for field in df.select(*(f.expr(sql) for sql in aggregate.columns)).schema]
    for sql, kind in zip(aggregate.columns, kinds, strict=True):
        if not has_digests(kind):
            raise PlanError(
                f"aggregate {name!r} counts {sql!r}, a {kind.simpleString()}, whose values cannot be told apart here",
                operation="bind",
                stage=stage,
                hint="Count plain values: the fields of a struct, to_json(...) of what is nested,"
                " collation_key(...) of text with a collation.",
            )


def _bind_one(stage: str, df: DataFrame, name: str, aggregate: Aggregate, ansi: bool) -> BoundAggregate:
    _check_row_wise(stage, df, name, aggregate)
    if isinstance(aggregate, DistinctCount):
        _check_values(stage, df, name, aggregate)
    whole = _typed(stage, df, name, [aggregate.sql()])
    result = t.StructField(name, whole.fields[0].dataType, True)
    sql = partials(aggregate, isinstance(result.dataType, t.DecimalType))
    types = arrow_schema(stage, _typed(stage, df, name, sql)).types
    bound = accumulator(name, aggregate, types, arrow_schema(stage, whole).types[0], ansi)
    return BoundAggregate(tuple(sql), bound, result, aggregate.function, aggregate.expression)


def _taken(columns: Columns, rows: Ints) -> Columns:
    indices = pa.array(rows)
    return [column.take(indices) for column in columns]
