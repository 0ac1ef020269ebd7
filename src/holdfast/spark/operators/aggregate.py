"""The running aggregate: one state row per key, one output row per key that an epoch changed.

Invariants: an epoch's rows reach a task grouped, one row per key, so a key is looked up once; the layer
holds exactly the touched keys; the output is the same keys in the same canonical order. Where keys wait for the end of
their substream, the output is the keys that end instead, the layer has tombstones for them, and a key lies in the
bucket of its label.
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
from holdfast.flow.substreams import SUBSTREAM
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, placed
from holdfast.spark.operators import moving
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.ends import ended_rows, label_buckets, tombstones_of
from holdfast.spark.operators.folding import Folding, direct_of
from holdfast.spark.operators.folding_binding import bind_folding
from holdfast.spark.operators.view import StateView
from holdfast.state.canonical import Ints, canonical_order
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
    label: str | None  # the state's column of the label, where keys leave when their substream has ended
    timing: None = None

    @property
    def view(self) -> StateView:
        """The keys and the finished aggregates."""
        return StateView.of(self.state, [*self.keys.view, *self.folding.view], None)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows as one row per key, each in the partition of the task that owns its hash."""
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.keys.names, self.hash_bits)))
        grouped = placed(
            hashed,
            shape.boundaries,
            self.keys.aggregated_first(shape.aggregate_first),
            self.keys.quoted,
            self.folding.columns,
        )
        return grouped.select(f.col(HASH).alias(STATE_HASH), *self.keys.renamed, *self.folding.partials.names)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Merge an epoch's partial values into the stored ones."""
        return self._merged(self._sorted(rows), spine, times)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """Aggregate an epoch's rows, and merge what comes of it into the stored values."""
        rows: pa.Table = sides[0]
        keys = [single(rows[name]) for name in self.keys.names]
        return self._merged(
            self.folding.fold(rows, self._buckets(keys, rows.num_rows), self.keys), spine, times
        )

    def _merged(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        layer, added = self.folding.upsert(rows, spine)
        if self.label is None:
            return Changes(layer, {"out": self._results(layer)}, added)
        ended = ended_rows(spine, self.label, times.ends)
        whole = moving.layer_of(self.state, layer, tombstones_of(ended)) if ended.num_rows else layer
        return Changes(whole, {"out": self._results(ended)}, added - ended.num_rows)

    def _results(self, rows: pa.Table) -> pa.Table:
        keys = [single(rows[name]) for name in self.state.keys.names]
        values = self.folding.finish([single(rows[name]) for name in self.state.values.names])
        return pa.table([*keys, *values], self.output)

    def _buckets(self, keys: Sequence[pa.Array], rows: int) -> Ints:
        """One for all keys, or that of each key's label."""
        if self.label is None:
            return np.zeros(rows, np.int64)
        return label_buckets(keys[self.state.keys.names.index(self.label)])

    def _sorted(self, rows: pa.Table) -> pa.Table:
        h = np.asarray(single(rows[STATE_HASH]))
        keys = [single(rows[name]) for name in self.state.keys.names]
        bucket = self._buckets(keys, rows.num_rows)
        order = canonical_order(bucket, h, keys)
        return take_rows(rows, order).append_column(BUCKET, pa.array(bucket[order]))


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
            **({"emit": "end"} if node.at_end else {}),
        },
        direct_of(keys, folding, arrow_schema(stage, df.schema)),
        f"k{node.keys.index(SUBSTREAM)}" if node.at_end else None,
    )
