"""Dedup without an end: a row goes through unless a row with its id ever did.

The state holds a 128-bit digest of each id, and the epoch in which it came. It grows with the ids, by some 26 bytes each.

Invariants: of the rows of an id in one epoch the one whose columns come first in canonical order goes through, so that
a replay agrees; an id is in the state once.
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
from holdfast.flow.nodes import Dedup
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, quoted, sent, unfit_for_comparison
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.dedup import DIGEST, DIGEST_SEED
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.canonical import canonical_order
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

_STATE = StateSchema(pa.schema([("digest", pa.int64())]), pa.schema([("epoch", pa.int64())]))


@dataclass(frozen=True)
class DistinctOperator:
    """A dedup for ever, bound to the types of its input."""

    ids: BoundKeys
    side: pa.Schema  # of the input rows
    settling: tuple[str, ...]  # received columns that settle which of equal ids comes first
    received: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    direct: Direct | None
    state: StateSchema = _STATE
    timing: None = None

    @property
    def view(self) -> StateView:
        """The two hashes that are kept of an id, and the epoch in which it came."""
        named = (("id_hash", STATE_HASH), ("id_digest", "digest"), ("epoch", "epoch"))
        columns = [ViewColumn(name, "bigint", pa.int64(), (stored,)) for name, stored in named]
        return StateView.of(self.state, columns, None)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows with the digest of their id, in the partition of the task that owns it."""
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.ids.names, self.hash_bits))).withColumn(
            DIGEST, f.expr(hash_sql(self.ids.names, seed=DIGEST_SEED))
        )
        columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(self.side.names)]
        return sent(hashed, shape.boundaries).select(f.col(HASH).alias(STATE_HASH), f.col(DIGEST), *columns)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the input has them."""
        rows: pa.Table = sides[0]
        digest = hash_columns([single(rows[name]) for name in self.ids.names], seed=DIGEST_SEED)
        columns = [rows[HASH], pa.array(digest), *(rows[name] for name in self.side.names)]
        return self.apply(pa.table(columns, self.received), spine, times)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Let through what is new, and remember it."""
        h = np.asarray(single(rows[STATE_HASH]))
        ties = [single(rows[name]) for name in (DIGEST, *self.settling)]
        ordered = take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, ties))
        h, digest = (np.asarray(single(ordered[name])) for name in (STATE_HASH, DIGEST))
        begins = np.ones(len(h), np.bool_)
        begins[1:] = (h[1:] != h[:-1]) | (digest[1:] != digest[:-1])
        first = np.flatnonzero(begins)
        needles = pa.table([np.zeros(len(first), np.int64), h[first], digest[first]], self.state.needles)
        accepted = first[~spine.lookup(needles).mask]
        new = take_rows(ordered, accepted)
        layer = pa.table(
            [
                np.zeros(len(accepted), np.int64),
                h[accepted],
                pa.repeat(pa.scalar(True), len(accepted)),
                digest[accepted],
                np.full(len(accepted), times.epoch, np.int64),
            ],
            self.state.changes,
        )
        columns = pa.table([single(new[f"c{i}"]) for i in range(len(self.side))], schema=self.side)
        repeated = len(h) - len(accepted)
        return Changes(layer, {"out": columns}, len(accepted), {"duplicates": repeated} if repeated else {})


def bind_distinct(stage: str, node: Dedup, df: DataFrame, hash_bits: int) -> DistinctOperator:
    """Work out the types over a DataFrame that has the input's schema."""
    ids = BoundKeys.of(stage, df.schema, node.ids)
    side = arrow_schema(stage, df.schema)
    comparable = [not unfit_for_comparison(field.dataType) for field in df.schema.fields]
    columns = [(f"c{i}", field.type) for i, field in enumerate(side)]
    return DistinctOperator(
        ids,
        side,
        tuple(f"c{i}" for i, fit in enumerate(comparable) if fit),
        pa.schema([(STATE_HASH, pa.int64()), (DIGEST, pa.int64()), *columns]),
        t.StructType([t.StructField(field.name, field.dataType, True) for field in df.schema.fields]),
        hash_bits,
        {"operator": "dedup for ever", "ids": ids.description, "hash_bits": hash_bits},
        Direct(ids.names, (tuple(side.names),)) if ids.hashable else None,
    )
