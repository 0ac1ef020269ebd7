"""Aggregates in session windows: rows of a key that follow each other by no more than a gap.

A session is an interval from its first row to a gap behind its last one; intervals of a key that overlap or touch
are one session, as they are for Spark. So a row at its very end still belongs to it, and it is final when the
watermark has passed its end. The rows of an epoch are intervals too, so an epoch is one merge of intervals: those that the state
holds for the touched keys, and those that came.

Invariants: a session's bucket is the slice of event time, a gap long, in which it ends; sessions of a key end at
least a gap apart, so no two share a bucket. Sessions that the watermark has reached leave before the epoch's
rows are looked at. A session that moves on leaves a tombstone in its old bucket.
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

from holdfast.core.json import Json
from holdfast.flow.nodes import WindowAggregate
from holdfast.flow.windows import WINDOW_END, WINDOW_START, Session
from holdfast.protocols.watermark import Timing
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, placed
from holdfast.spark.operators import moving
from holdfast.spark.operators.accumulator import Columns
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.event_time import TIME, Clock, Judged, as_timestamps
from holdfast.spark.operators.folding import Folding
from holdfast.spark.operators.folding_binding import bind_folding
from holdfast.spark.operators.view import StateView
from holdfast.spark.operators.windows import window_description, window_output
from holdfast.state.canonical import Bools, Ints, canonical_order, group_starts, same_as_next
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

START, END = "start", "end"


@dataclass(frozen=True)
class _Intervals:
    """Intervals of keys, by the key's number, and what has been aggregated in them."""

    key: Ints
    start: Ints
    end: Ints
    stored: Columns


@dataclass(frozen=True)
class SessionOperator:
    """A session aggregate, bound to the types of its input."""

    stage: str
    keys: BoundKeys
    folding: Folding
    clock: Clock
    kind: Session
    received: pa.Schema
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    direct: Direct | None

    @property
    def timing(self) -> Timing:
        """Buckets are a gap long; new sessions begin at most a gap before the watermark."""
        gap, time = self.kind.gap_us, self.clock.time
        return Timing(
            (time.column,),
            time.late_us,
            keeps_us=1,
            emits_at_close=True,
            slice_us=gap,
            holds_us=gap + 1,
            emits_windows=True,
        )

    @property
    def view(self) -> StateView:
        """Keys, window and finished aggregates of the open sessions."""
        window = [self.clock.view(WINDOW_START, START), self.clock.view(WINDOW_END, END)]
        return StateView.of(self.state, [*self.keys.view, *window, *self.folding.view], self.timing)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows as one row per key and time."""
        marked = self.clock.marked(df, times, f"{TIME} + {self.kind.gap_us}L < {times.watermark_us}L")
        hashed = self.clock.with_sides(self.stage, marked).withColumn(
            HASH, f.expr(hash_sql(self.keys.names, self.hash_bits))
        )
        group = [*self.clock.group, TIME, *self.keys.quoted]
        values = [*self.folding.columns, *self.clock.columns]
        first = self.keys.aggregated_first(shape.aggregate_first)
        grouped = placed(hashed, shape.boundaries, first, group, values)
        return grouped.select(
            f.col(HASH).alias(STATE_HASH),
            f.col(TIME).alias(START),
            *self.keys.renamed,
            *self.folding.partials.names,
            *self.clock.received.names,
        )

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Let go of the sessions that are final, then merge the epoch's rows into the open ones."""
        judged = self.clock.judge(rows)
        return self._changes(judged.on_time, judged, spine, times)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the input has them: each is an interval, whether or not others are equal to it."""
        rows: pa.Table = sides[0]
        ends = partial(np.add, self.kind.gap_us + 1)
        flags = self.clock.flags(self.clock.micros(rows), times, ends)
        judged = self.clock.judge_rows(rows, flags)
        on_time = judged.on_time
        keys = [single(on_time[name]) for name in self.keys.names]
        columns = [single(on_time[HASH]), self.clock.micros(on_time), *keys]
        names = [STATE_HASH, START, *self.keys.stored.names, *self.folding.partials.names]
        intervals = pa.table([*columns, *self.folding.lift(on_time)], names=names)
        return self._changes(intervals, judged, spine, times)

    def _changes(self, rows: pa.Table, judged: Judged, spine: Spine, times: Times) -> Changes:
        closed = moving.ended(spine, self.timing, END, times.watermark_us)
        came, heads = self._came(rows)
        keys = [single(heads[name]) for name in self.state.keys.names]
        found = spine.lookup_everywhere(np.asarray(single(heads[STATE_HASH])), keys)
        open_ = np.asarray(single(found.values[END])) >= moving.or_lowest(times.watermark_us)
        held = _Intervals(
            found.needle[open_],
            np.asarray(single(found.values[START]))[open_],
            np.asarray(single(found.values[END]))[open_],
            [single(found.values[name]).filter(pa.array(open_)) for name in self.folding.stored.names],
        )
        merged, moved = self._merged(held, came)
        layer = self._layer(heads, merged, held, moved, closed, times)
        added = len(merged.key) - int(np.count_nonzero(moved)) - closed.num_rows
        return Changes(
            layer,
            {"out": self._results(closed), **judged.outputs},
            added,
            judged.counts,
            judged.newest_us,
            self._holds(merged),
        )

    def _came(self, rows: pa.Table) -> tuple[_Intervals, pa.Table]:
        """The epoch's rows as intervals, in order of key and time, and one row for each key."""
        keys = [single(rows[name]) for name in self.state.keys.names]
        h, time = (np.asarray(single(rows[name])) for name in (STATE_HASH, START))
        zeros = np.zeros(len(h), np.int64)
        rows = take_rows(rows, canonical_order(zeros, h, keys, time))
        keys = [single(rows[name]) for name in self.state.keys.names]
        h, time = (np.asarray(single(rows[name])) for name in (STATE_HASH, START))
        first = np.append(True, ~same_as_next(zeros, h, keys))[: len(h)]
        stored = self.folding.begin([single(rows[name]) for name in self.folding.partials.names])
        came = _Intervals(np.cumsum(first) - 1, time, time + self.kind.gap_us, stored)
        return came, take_rows(rows.select([STATE_HASH, *self.state.keys.names]), np.flatnonzero(first))

    def _merged(self, held: _Intervals, came: _Intervals) -> tuple[_Intervals, Bools]:
        """The sessions that the epoch's rows are part of, and which of the held ones went into them."""
        key = np.concatenate([held.key, came.key])
        start = np.concatenate([held.start, came.start])
        end = np.concatenate([held.end, came.end])
        order = np.lexsort((end, start, key))
        session, last_end = _overlapping(key[order], start[order], end[order])
        is_new = order >= len(held.key)
        touched = np.zeros(len(order) and int(session[-1]) + 1, np.bool_)
        touched[session[is_new]] = True
        chosen = touched[session]
        order, session, last_end = order[chosen], session[chosen], last_end[chosen]
        moved = np.zeros(len(held.key), np.bool_)
        moved[order[order < len(held.key)]] = True
        indices = pa.array(order)
        columns = [
            pa.concat_arrays([old.cast(new.type), new]).take(indices)
            for old, new in zip(held.stored, came.stored, strict=True)
        ]
        first = group_starts(session)
        last = np.append(first[1:], len(session))[: len(first)] - 1
        stored = self.folding.reduce(session, columns)
        return _Intervals(key[order][first], start[order][first], last_end[last], stored), moved

    def _layer(
        self,
        heads: pa.Table,
        merged: _Intervals,
        held: _Intervals,
        moved: Bools,
        closed: pa.Table,
        times: Times,
    ) -> pa.Table:
        """The sessions as they are now; tombstones where one was and none is now, unless the floor hides it."""
        numbers = [merged.start, merged.end]
        live = self._state_rows(heads, merged.key, self._bucket(merged.end), True, numbers, merged.stored)
        gone = self._state_rows(heads, held.key[moved], self._bucket(held.end[moved]), False)
        return moving.layer_of(self.state, live, gone, moving.tombstones(closed, times.watermark_us))

    def _state_rows(
        self,
        heads: pa.Table,
        key: Ints,
        bucket: Ints,
        live: bool,
        numbers: list[Ints] | None = None,
        stored: Columns | None = None,
    ) -> pa.Table:
        of_key = take_rows(heads, key)
        rows = len(key)
        values = [*(pa.array(column) for column in numbers or ()), *(stored or ())]
        values = values or [pa.nulls(rows, field.type) for field in self.state.values]
        return pa.table(
            [
                pa.array(bucket),
                single(of_key[STATE_HASH]),
                pa.repeat(pa.scalar(live), rows),
                *(single(of_key[name]) for name in self.state.keys.names),
                *values,
            ],
            self.state.changes,
        )

    def _bucket(self, end: Ints) -> Ints:
        return -(-end // self.kind.gap_us) * self.kind.gap_us

    def _holds(self, merged: _Intervals) -> list[tuple[int, int]]:
        """Of each bucket written to, the earliest beginning of a session in it."""
        bucket = self._bucket(merged.end)
        order = np.argsort(bucket, kind="stable")
        starts = group_starts(bucket[order])
        if not starts.size:
            return []
        earliest = np.minimum.reduceat(merged.start[order], starts)
        return [(int(b), int(s)) for b, s in zip(bucket[order][starts], earliest, strict=True)]

    def _results(self, rows: pa.Table) -> pa.Table:
        kind = self.output.field(WINDOW_END).type
        keys = [single(rows[name]) for name in self.state.keys.names]
        values = self.folding.finish([single(rows[name]) for name in self.folding.stored.names])
        window = [as_timestamps(np.asarray(single(rows[name])), kind) for name in (START, END)]
        return pa.table([*keys, *window, *values], self.output)


def bind_session(
    stage: str, node: WindowAggregate, df: DataFrame, clock: Clock, ansi: bool, hash_bits: int
) -> SessionOperator:
    """Work out the types of a session aggregate over a DataFrame that has the input's schema."""
    assert isinstance(node.window.kind, Session)
    keys = BoundKeys.of(stage, df.schema, node.keys)
    folding = bind_folding(stage, df, node.aggregates, ansi)
    output = window_output(keys, clock, folding)
    received = [(STATE_HASH, pa.int64()), (START, pa.int64()), *keys.stored, *folding.partials]
    interval = [(START, pa.int64()), (END, pa.int64())]
    return SessionOperator(
        stage,
        keys,
        folding,
        clock,
        node.window.kind,
        pa.schema([*received, *clock.received]),
        StateSchema(keys.stored, pa.schema([*interval, *folding.stored])),
        arrow_schema(stage, output),
        output,
        hash_bits,
        window_description(node, keys, folding, hash_bits),
        clock.direct(keys, folding, df.schema),
    )


def _overlapping(key: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Number the sessions of intervals in order of key and start; and the latest end so far in each."""
    if not len(key):
        return key, end
    # The running maximum must not cross keys: ends are replaced by their ranks, on top of which the key stands.
    ranked = np.sort(end)
    code = key * len(end) + np.searchsorted(ranked, end)
    latest = ranked[np.maximum.accumulate(code) - key * len(end)]
    begins = np.ones(len(key), np.bool_)
    begins[1:] = (key[1:] != key[:-1]) | (start[1:] > latest[:-1])
    return np.cumsum(begins) - 1, latest
