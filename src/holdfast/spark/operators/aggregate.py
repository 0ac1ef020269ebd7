"""The running aggregate: one state row per key, one output row per key that an epoch changed.

Invariants: an epoch's rows reach a task grouped, one row per key, so a key is looked up once; the layer
holds exactly the touched keys; the output is the same keys in the same canonical order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.aggregates import Aggregate
from holdfast.flow.nodes import RunningAggregate
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, PART, check_keys, hash_sql, part_sql, quoted
from holdfast.spark.operators.accumulators import Accumulator, accumulator, partials
from holdfast.spark.operators.contract import Changes, Shape
from holdfast.state.canonical import canonical_order
from holdfast.state.schema import BUCKET, StateSchema, single, take_rows
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class BoundAggregate:
    """One aggregate with its types: what Spark computes per epoch, and what accumulates it."""

    sql: tuple[str, ...]
    accumulator: Accumulator
    field: t.StructField  # of the result
    function: str


@dataclass(frozen=True)
class AggregateOperator:
    """A running aggregate, bound to the types of its input."""

    keys: tuple[str, ...]
    aggregates: tuple[BoundAggregate, ...]
    received: pa.Schema  # what a task is given: the hash, the keys, the partial values
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json

    def grouped(self, df: DataFrame, shape: Shape) -> DataFrame:
        """The epoch's rows as one row per key, each in the partition of the task that owns its hash."""
        keys = [quoted(key) for key in self.keys]
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.keys, self.hash_bits)))
        partials = [sql for aggregate in self.aggregates for sql in aggregate.sql]
        values = [f.expr(sql).alias(f"p{i}") for i, sql in enumerate(partials)]
        part = f.expr(part_sql(shape.boundaries)).cast("int")
        if shape.aggregate_first:
            small = hashed.groupBy(HASH, *keys).agg(*values).withColumn(PART, part)
            placed = small.repartitionById(shape.tasks, f.col(PART))
        else:
            placed = hashed.withColumn(PART, part).repartitionById(shape.tasks, f.col(PART))
            placed = placed.groupBy(PART, HASH, *keys).agg(*values)
        named = [f.col(key).alias(f"k{i}") for i, key in enumerate(keys)]
        return placed.select(f.col(HASH).alias(STATE_HASH), *named, *(f"p{i}" for i in range(len(values))))

    def apply(self, rows: pa.Table, spine: Spine) -> Changes:
        """Merge an epoch's partial values into the stored ones."""
        rows = self._sorted(rows)
        found = spine.lookup(rows.select([BUCKET, STATE_HASH, *self.state.keys.names]))
        stored, results = self._merged(
            [single(column) for column in found.values.columns],
            [single(rows[field.name]) for field in self.received if field.name.startswith("p")],
        )
        keys = [single(rows[name]) for name in self.state.keys.names]
        live = pa.repeat(pa.scalar(True), rows.num_rows)
        layer = pa.table(
            [single(rows[BUCKET]), single(rows[STATE_HASH]), live, *keys, *stored], self.state.changes
        )
        output = pa.table([*keys, *results], self.output)
        added = rows.num_rows - int(np.count_nonzero(found.mask))
        return Changes(layer, {"out": output}, added)

    def _merged(self, old: list[pa.Array], new: list[pa.Array]) -> tuple[list[pa.Array], list[pa.Array]]:
        """The state columns and the values of all aggregates; each takes its own columns off both lists."""
        stored: list[pa.Array] = []
        results: list[pa.Array] = []
        for accumulator_ in (aggregate.accumulator for aggregate in self.aggregates):
            mine, news = len(accumulator_.stored), len(accumulator_.partials)
            merged = accumulator_.merge(old[:mine], new[:news])
            old, new = old[mine:], new[news:]
            stored += merged
            results.append(accumulator_.finish(merged))
        return stored, results

    def _sorted(self, rows: pa.Table) -> pa.Table:
        h = np.asarray(single(rows[STATE_HASH]))
        bucket = np.zeros(len(h), np.int64)
        keys = [single(rows[name]) for name in self.state.keys.names]
        order = canonical_order(bucket, h, keys)
        return take_rows(rows, order).append_column(BUCKET, pa.array(bucket))


def bind_aggregate(
    stage: str, node: RunningAggregate, df: DataFrame, ansi: bool, hash_bits: int
) -> AggregateOperator:
    """Work out the types of an aggregate over a DataFrame that has the input's schema."""
    check_keys(stage, df.schema, node.keys)
    keys = [df.schema[key] for key in node.keys]
    bound = tuple(_bind_one(stage, df, name, aggregate, ansi) for name, aggregate in node.aggregates)
    output = t.StructType(
        [*(t.StructField(k.name, k.dataType, True) for k in keys), *(a.field for a in bound)]
    )
    renamed = t.StructType([t.StructField(f"k{i}", k.dataType, True) for i, k in enumerate(keys)])
    key_schema = arrow_schema(stage, renamed)
    stored = [kind for aggregate in bound for kind in aggregate.accumulator.stored]
    partial = [kind for aggregate in bound for kind in aggregate.accumulator.partials]
    return AggregateOperator(
        node.keys,
        bound,
        pa.schema(
            [(STATE_HASH, pa.int64()), *key_schema, *((f"p{i}", kind) for i, kind in enumerate(partial))]
        ),
        StateSchema(key_schema, pa.schema([(f"v{i}", kind) for i, kind in enumerate(stored)])),
        arrow_schema(stage, output),
        output,
        hash_bits,
        _description(keys, bound, hash_bits),
    )


def _bind_one(stage: str, df: DataFrame, name: str, aggregate: Aggregate, ansi: bool) -> BoundAggregate:
    whole = _typed(stage, df, name, [aggregate.sql()])
    result = t.StructField(name, whole.fields[0].dataType, True)
    sql = partials(aggregate, isinstance(result.dataType, t.DecimalType))
    types = arrow_schema(stage, _typed(stage, df, name, sql)).types
    bound = accumulator(name, aggregate, types, arrow_schema(stage, whole).types[0], ansi)
    return BoundAggregate(tuple(sql), bound, result, aggregate.function)


def _description(keys: Sequence[t.StructField], bound: Sequence[BoundAggregate], hash_bits: int) -> Json:
    """What must not change while there is state: names, functions and types, but not the expressions."""
    fields = ((aggregate.field, aggregate.function) for aggregate in bound)
    return {
        "operator": "running aggregate",
        "keys": ", ".join(f"{k.name} {k.dataType.simpleString()}" for k in keys),
        "aggregates": ", ".join(
            f"{field.name}={what}:{field.dataType.simpleString()}" for field, what in fields
        ),
        "hash_bits": hash_bits,
    }


def _typed(stage: str, df: DataFrame, name: str, expressions: list[str]) -> t.StructType:
    """The types that Spark gives to aggregate expressions."""
    try:
        return df.agg(*(f.expr(sql).alias(f"c{i}") for i, sql in enumerate(expressions))).schema
    except AnalysisException as error:
        raise PlanError(
            f"aggregate {name!r} cannot be computed: {error.getMessage() or error}",
            operation="bind",
            stage=stage,
            hint=f"The columns are {', '.join(df.columns)}.",
        ) from error
