"""Dedup: a row goes through unless its id was accepted within a span of event time around it.

The state holds a 128-bit digest and the time of each accepted id, in slices of event time, and nothing else.

Invariants: of the rows of an id in one epoch the earliest wins, and of equal times the one whose columns come first
in canonical order, so that a replay agrees; accepted times of an id are
further apart than `within`, and a slice is no longer than that, so an id is in a slice at most once; what could
no longer make a row on time a duplicate is dropped by slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.nodes import Dedup
from holdfast.protocols.watermark import Timing
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import (
    HASH,
    PREFIX,
    BoundKeys,
    has_digests,
    hash_sql,
    quoted,
    sent,
    unfit_for_comparison,
)
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.event_time import (
    INPUT,
    ON_TIME,
    REASONS,
    Clock,
    counted,
)
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.canonical import Bools, Ints, canonical_order, group_starts
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

DIGEST = f"{PREFIX}d"

# A constant in front changes the seed for all that follows: the second half of 128 bits.
DIGEST_SEED = 1

_STATE = StateSchema(pa.schema([("digest", pa.int64())]), pa.schema([("time", pa.int64())]))


@dataclass(frozen=True)
class DedupOperator:
    """A dedup, bound to the types of its input."""

    ids: BoundKeys
    clock: Clock
    within_us: int
    settling: tuple[str, ...]  # received columns that settle which of equal ids and times comes first
    received: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    direct: Direct | None
    state: StateSchema = _STATE

    @property
    def timing(self) -> Timing:
        """A row as old as the watermark is a duplicate of an id accepted up to `within` before it."""
        return Timing((self.clock.time.column,), self.clock.time.late_us, keeps_us=self.within_us)

    @property
    def view(self) -> StateView:
        """The two hashes that are kept of an id, and the time at which it was accepted."""
        hashes = [
            ViewColumn(name, "bigint", pa.int64(), (stored,))
            for name, stored in (("id_hash", STATE_HASH), ("id_digest", "digest"))
        ]
        accepted = self.clock.view(self.clock.time.column, "time")
        return StateView.of(self.state, [*hashes, accepted], self.timing)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows with the digest of their id, in the partition of the task that owns it.

        Every column that crosses into Python costs as much as the state work on it, so what a task can work out
        from the others is not sent.
        """
        digest = f.expr(hash_sql(self.ids.names, seed=DIGEST_SEED))
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.ids.names, self.hash_bits))).withColumn(
            DIGEST, digest
        )
        marks = [f.col(HASH).alias(STATE_HASH), *(f.col(name) for name in self._marks)]
        columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(self.clock.side.names)]
        return sent(hashed, shape.boundaries).select(*marks, *columns)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the input has them."""
        rows: pa.Table = sides[0]
        digest = hash_columns([single(rows[name]) for name in self.ids.names], seed=DIGEST_SEED)
        origin = [rows[INPUT]] if self.clock.inputs > 1 else []
        columns = [rows[HASH], pa.array(digest), *origin, *(rows[name] for name in self.clock.side.names)]
        return self.apply(pa.table(columns, self.received), spine, times)

    @property
    def _marks(self) -> list[str]:
        return [DIGEST, *([INPUT] if self.clock.inputs > 1 else [])]

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Let through what is new, and remember it."""
        times_us = self._micros(rows)
        flags = self.clock.flags(times_us, times, partial(np.add, 1))
        on_time = self._ordered(take_rows(rows, np.flatnonzero(flags == ON_TIME)))
        h, digest = (np.asarray(single(on_time[name])) for name in (STATE_HASH, DIGEST))
        time = np.asarray(self._micros(on_time))
        accepted = np.flatnonzero(self._accepted(h, digest, time, spine))
        new = take_rows(on_time, accepted)
        live = pa.repeat(pa.scalar(True), len(accepted))
        bucket = pa.array(self._slice(time[accepted]))
        layer = pa.table(
            [bucket, pa.array(h[accepted]), live, pa.array(digest[accepted]), pa.array(time[accepted])],
            self.state.changes,
        )
        counts = {"duplicates": len(time) - len(accepted), **counted(flags)}
        outputs = {"out": self._columns(new), **self._sides(rows, flags)}
        return Changes(
            layer,
            outputs,
            len(accepted) - self._expired(spine, times),
            {reason: count for reason, count in counts.items() if count},
            self.clock.newest(rows, times_us, flags),
        )

    def _micros(self, rows: pa.Table) -> pa.Array:
        """Event times as numbers."""
        return single(rows[f"c{self.clock.side.names.index(self.clock.time.column)}"]).view(pa.int64())

    def _accepted(self, h: Ints, digest: Ints, time: Ints, spine: Spine) -> Bools:
        """Which of the rows, in order of id, time and row hash, are the first of their id."""
        begins = np.ones(len(h), np.bool_)
        begins[1:] = (h[1:] != h[:-1]) | (digest[1:] != digest[:-1])
        first = np.flatnonzero(begins)
        ids = np.cumsum(begins) - 1
        pending = ~self._known(h, digest, time, first, spine)
        accepted = np.zeros(len(h), np.bool_)
        # Each round accepts the earliest pending row of every id; further rounds need times far apart.
        while pending.any():
            rows = np.flatnonzero(pending)
            winners = rows[group_starts(ids[rows])]
            accepted[winners] = True
            last = np.full(len(first), np.iinfo(np.int64).min)
            last[ids[winners]] = time[winners]
            pending[rows] = time[rows] - last[ids[rows]] > self.within_us
        return accepted

    def _known(self, h: Ints, digest: Ints, time: Ints, first: Ints, spine: Spine) -> Bools:
        """Which rows are near an accepted time of their id in the state."""
        known = np.zeros(len(h), np.bool_)
        found = spine.lookup_everywhere(h[first], [pa.array(digest[first])])
        if not len(found.needle):
            return known
        start = first[found.needle]
        count = np.append(first[1:], len(h))[found.needle] - start
        skipped = start - (np.cumsum(count) - count)
        row = np.repeat(skipped, count) + np.arange(count.sum())
        at = np.repeat(np.asarray(single(found.values["time"])), count)
        known[row[np.abs(time[row] - at) <= self.within_us]] = True
        return known

    def _expired(self, spine: Spine, times: Times) -> int:
        """Ids in slices that the watermark has left behind; they are counted from what the runs say of themselves."""
        floor = self.timing.floor(times.watermark_us)
        return 0 if floor is None else spine.count(last_bucket=floor - 1)

    def _slice(self, time: Ints) -> Ints:
        """The end of the slice of event time that a time is in."""
        width = max(1, self.within_us // limits.DEDUP_SLICES)
        return (time // width + 1) * width

    def _ordered(self, rows: pa.Table) -> pa.Table:
        """By id, then by time, then as the columns settle it; equal hashes, of which there are few, are compared."""
        h = np.asarray(single(rows[STATE_HASH]))
        ties = [single(rows[DIGEST]), self._micros(rows), *(single(rows[name]) for name in self.settling)]
        return take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, ties))

    def _columns(self, rows: pa.Table) -> pa.Table:
        return pa.table([single(rows[f"c{i}"]) for i in range(len(self.clock.side))], schema=self.clock.side)

    def _sides(self, rows: pa.Table, flags: np.ndarray) -> dict[str, pa.Table]:
        sides = {}
        for port in sorted(self.clock.ports):
            wanted = np.isin(flags, [flag for flag, (_, to) in REASONS.items() if to == port])
            if wanted.any():
                chosen = take_rows(rows, np.flatnonzero(wanted))
                sides[port] = self._columns(self._ordered(chosen))
        return sides


def bind_dedup(stage: str, node: Dedup, df: DataFrame, clock: Clock, hash_bits: int) -> DedupOperator:
    """Work out the types of a dedup over a DataFrame that has the input's schema."""
    assert node.within_us is not None
    ids = BoundKeys.of(stage, df.schema, node.ids)
    _check_ids(stage, ids)
    marks = [(STATE_HASH, pa.int64()), (DIGEST, pa.int64())]
    origin = [(INPUT, pa.int32())] if clock.inputs > 1 else []
    columns = [(f"c{i}", field.type) for i, field in enumerate(clock.side)]
    return DedupOperator(
        ids,
        clock,
        node.within_us,
        tuple(
            f"c{i}" for i, field in enumerate(df.schema.fields) if not unfit_for_comparison(field.dataType)
        ),
        pa.schema([*marks, *origin, *columns]),
        t.StructType([t.StructField(field.name, field.dataType, True) for field in df.schema.fields]),
        hash_bits,
        {
            "operator": "dedup",
            "ids": ids.description,
            "within": f"{node.within_us} us",
            "hash_bits": hash_bits,
        },
        Direct(ids.names, (tuple(clock.side.names),)) if ids.hashable else None,
    )


def _check_ids(stage: str, ids: BoundKeys) -> None:
    """Refuse ids of which the digest, all that is kept of them, may be that of another: a row would be dropped for it."""
    for field in ids.fields:
        if not has_digests(field.dataType):
            raise PlanError(
                f"column {field.name!r}, a {field.dataType.simpleString()}, cannot be an id: its values cannot be told apart"
                " by their digests",
                operation="bind",
                stage=stage,
                hint="Dedup by plain values: the fields of a struct, to_json(...) of what is nested, collation_key(...)"
                " of text with a collation, as columns that a transform adds.",
            )
