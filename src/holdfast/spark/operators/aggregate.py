"""The running aggregate: one state row per key, one output row per key that an epoch changed.

Invariants: an epoch's rows reach a task grouped, one row per key, so a key is looked up once; the layer
holds exactly the touched keys; the output is the same keys in the same canonical order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.json import Json
from holdfast.flow.nodes import RunningAggregate
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, placed
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.folding import Folding, bind_folding, direct_of
from holdfast.spark.operators.view import StateView
from holdfast.state.canonical import canonical_order
from holdfast.state.schema import BUCKET, StateSchema, single, take_rows
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class AggregateOperator:
    """A running aggregate, bound to the types of its input."""

    keys: BoundKeys
    folding: Folding
    received: pa.Schema  # what a task is given: the hash, the keys, the partial values
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    direct: Direct | None
    timing: None = None

    @property
    def view(self) -> StateView:
        """The keys and the finished aggregates."""
        return StateView.of(self.state, [*self.keys.view, *self.folding.view], None)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows as one row per key, each in the partition of the task that owns its hash."""
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.keys.names, self.hash_bits)))
        grouped = placed(
            hashed, shape.boundaries, shape.aggregate_first, self.keys.quoted, self.folding.columns
        )
        return grouped.select(f.col(HASH).alias(STATE_HASH), *self.keys.renamed, *self.folding.partials.names)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Merge an epoch's partial values into the stored ones."""
        return self._merged(self._sorted(rows), spine)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """Aggregate an epoch's rows, and merge what comes of it into the stored values."""
        rows: pa.Table = sides[0]
        return self._merged(self.folding.fold(rows, np.zeros(rows.num_rows, np.int64), self.keys), spine)

    def _merged(self, rows: pa.Table, spine: Spine) -> Changes:
        layer, added = self.folding.upsert(rows, spine)
        keys = [single(layer[name]) for name in self.state.keys.names]
        values = self.folding.finish([single(layer[name]) for name in self.state.values.names])
        return Changes(layer, {"out": pa.table([*keys, *values], self.output)}, added)

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
    keys = BoundKeys.of(stage, df.schema, node.keys)
    folding = bind_folding(stage, df, node.aggregates, ansi)
    output = t.StructType([*keys.fields, *folding.fields])
    return AggregateOperator(
        keys,
        folding,
        pa.schema([(STATE_HASH, pa.int64()), *keys.stored, *folding.partials]),
        StateSchema(keys.stored, folding.stored),
        arrow_schema(stage, output),
        output,
        hash_bits,
        {
            "operator": "running aggregate",
            "keys": keys.description,
            "aggregates": folding.description,
            "hash_bits": hash_bits,
        },
        direct_of(keys, folding, arrow_schema(stage, df.schema)),
    )
