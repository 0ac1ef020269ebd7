"""The running aggregate: one state row per key, one output row per key that an epoch changed.

Invariants: an epoch's rows reach a task grouped, one row per key, so a key is looked up once; the layer
holds exactly the touched keys; the output is the same keys in the same canonical order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.nodes import RunningAggregate
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, PART, check_keys, hash_sql, part_sql, quoted
from holdfast.spark.operators.accumulators import Accumulator, accumulator, partials
from holdfast.spark.operators.contract import Changes, Shape
from holdfast.state.canonical import canonical_order
from holdfast.state.schema import BUCKET, StateSchema
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class AggregateOperator:
    """A running aggregate, bound to the types of its input."""

    keys: tuple[str, ...]
    partial_sql: tuple[str, ...]
    widths: tuple[int, ...]  # how many state columns each accumulator has
    accumulators: tuple[Accumulator, ...]
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json

    def grouped(self, df: DataFrame, shape: Shape) -> DataFrame:
        """The epoch's rows as one row per key, each in the partition of the task that owns its hash."""
        keys = [quoted(key) for key in self.keys]
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.keys, self.hash_bits)))
        values = [f.expr(sql).alias(f"v{i}") for i, sql in enumerate(self.partial_sql)]
        part = f.expr(part_sql(shape.boundaries)).cast("int")
        if shape.aggregate_first:
            small = hashed.groupBy(HASH, *keys).agg(*values).withColumn(PART, part)
            placed = small.repartitionById(shape.tasks, f.col(PART))
        else:
            placed = hashed.withColumn(PART, part).repartitionById(shape.tasks, f.col(PART))
            placed = placed.groupBy(PART, HASH, *keys).agg(*values)
        named = [f.col(key).alias(f"k{i}") for i, key in enumerate(keys)]
        return placed.select(f.col(HASH).alias(STATE_HASH), *named, *(f"v{i}" for i in range(len(values))))

    def apply(self, rows: pa.Table, spine: Spine) -> Changes:
        """Merge an epoch's partial values into the stored ones."""
        rows = self._sorted(rows)
        found = spine.lookup(rows.select([BUCKET, STATE_HASH, *self.state.keys.names]))
        columns: list[pa.Array] = []
        results: list[pa.Array] = []
        start = 0
        for width, acc in zip(self.widths, self.accumulators, strict=True):
            names = self.state.values.names[start : start + width]
            start += width
            old = [_whole(found.values[name]) for name in names]
            merged = acc.merge(old, [_whole(rows[name]) for name in names])
            columns += merged
            results.append(acc.finish(merged))
        keys = [_whole(rows[name]) for name in self.state.keys.names]
        live = pa.repeat(pa.scalar(True), rows.num_rows)
        layer = pa.table(
            [_whole(rows[BUCKET]), _whole(rows[STATE_HASH]), live, *keys, *columns], self.state.changes
        )
        output = pa.table([*keys, *results], self.output)
        added = rows.num_rows - int(np.count_nonzero(found.mask))
        return Changes(layer, {"out": output}, added)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        h = np.asarray(_whole(rows[STATE_HASH]))
        bucket = np.zeros(len(h), np.int64)
        keys = [_whole(rows[name]) for name in self.state.keys.names]
        order = canonical_order(bucket, h, keys)
        return rows.take(pa.array(order)).append_column(BUCKET, pa.array(bucket))


def bind_aggregate(
    stage: str, node: RunningAggregate, df: DataFrame, ansi: bool, hash_bits: int
) -> AggregateOperator:
    """Work out the types of an aggregate over a DataFrame that has the input's schema."""
    check_keys(stage, df.schema, node.keys)
    keys = t.StructType([df.schema[key] for key in node.keys])
    sql: list[str] = []
    widths: list[int] = []
    accumulators: list[Accumulator] = []
    fields: list[t.StructField] = []
    results: list[t.StructField] = []
    for name, aggregate in node.aggregates:
        whole = _typed(stage, df, name, [aggregate.sql()])
        result = whole.fields[0]
        parts = partials(aggregate, isinstance(result.dataType, t.DecimalType))
        typed = _typed(stage, df, name, parts)
        arrow = arrow_schema(stage, typed)
        accumulators.append(
            accumulator(name, aggregate, arrow.types, arrow_schema(stage, whole).types[0], ansi)
        )
        sql += parts
        widths.append(len(parts))
        fields += typed.fields
        results.append(t.StructField(name, result.dataType, True))
    values = t.StructType([t.StructField(f"v{i}", field.dataType, True) for i, field in enumerate(fields)])
    output = t.StructType([*(t.StructField(k.name, k.dataType, True) for k in keys.fields), *results])
    renamed = t.StructType([t.StructField(f"k{i}", k.dataType, True) for i, k in enumerate(keys.fields)])
    description: Json = {
        "operator": "running aggregate",
        "keys": ", ".join(f"{k.name} {k.dataType.simpleString()}" for k in keys.fields),
        "aggregates": ", ".join(
            f"{r.name}={a.function}:{r.dataType.simpleString()}"
            for r, (_, a) in zip(results, node.aggregates, strict=True)
        ),
        "hash_bits": hash_bits,
    }
    return AggregateOperator(
        node.keys,
        tuple(sql),
        tuple(widths),
        tuple(accumulators),
        StateSchema(arrow_schema(stage, renamed), arrow_schema(stage, values)),
        arrow_schema(stage, output),
        output,
        hash_bits,
        description,
    )


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


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
