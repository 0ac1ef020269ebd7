"""Aggregates in tumbling and sliding windows: one state row per key and window, its bucket the window's end.

Invariants: a row is late when all its windows are closed, and counts in those that are not; a window's bucket
is dropped when the watermark reaches its end, and what it held is read once, then, and nothing else is.
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
from holdfast.flow.nodes import WindowAggregate
from holdfast.flow.substreams import SUBSTREAM
from holdfast.flow.windows import WINDOW_END, WINDOW_START, Sliding
from holdfast.protocols.watermark import Timing
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, PREFIX, BoundKeys, hash_sql, placed, quoted
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.event_time import FLAG, ON_TIME, TIME, Clock, Judged, as_timestamps
from holdfast.spark.operators.folding import Folding
from holdfast.spark.operators.folding_binding import bind_folding
from holdfast.spark.operators.view import StateView
from holdfast.state.canonical import Ints, canonical_order
from holdfast.state.schema import BUCKET, StateSchema, single, take_rows
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.spine import Spine

END = f"{PREFIX}end"


@dataclass(frozen=True)
class WindowOperator:
    """A windowed aggregate, bound to the types of its input."""

    stage: str
    keys: BoundKeys
    folding: Folding
    clock: Clock
    kind: Sliding
    final: bool  # whether a window leaves once, when it closes, or whenever it changes
    received: pa.Schema
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    direct: Direct | None

    @property
    def timing(self) -> Timing:
        """Windows still to leave end after the watermark, so they begin at most their size before it."""
        return Timing(
            (self.clock.time.column,),
            self.clock.time.late_us,
            emits_at_close=self.final,
            holds_us=self.kind.size_us,
            emits_windows=True,
        )

    @property
    def view(self) -> StateView:
        """Keys, window and finished aggregates of the open windows."""
        window = [
            self.clock.view(WINDOW_START, BUCKET, self.kind.size_us),
            self.clock.view(WINDOW_END, BUCKET),
        ]
        return StateView.of(self.state, [*self.keys.view, *window, *self.folding.view], self.timing)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The epoch's rows as one row per key and window."""
        last_end = f"({TIME} - pmod({TIME}, {self.kind.slide_us}L) + {self.kind.size_us}L)"
        marked = self.clock.marked(df, times, f"{last_end} <= {times.watermark_us}L")
        hashed = self.clock.with_sides(self.stage, marked).withColumn(
            HASH, f.expr(hash_sql(self.keys.names, self.hash_bits))
        )
        grouped = placed(
            hashed.withColumn(END, f.expr(last_end)),
            shape.boundaries,
            self.keys.aggregated_first(shape.aggregate_first),
            [*self.clock.group, END, *self.keys.quoted],
            [*self.folding.columns, *self.clock.columns],
            lambda rows: self._in_every_window(rows, times),
        )
        return grouped.select(
            f.col(HASH).alias(STATE_HASH),
            f.col(END).alias(BUCKET),
            *self.keys.renamed,
            *self.folding.partials.names,
            *self.clock.received.names,
        )

    def _in_every_window(self, rows: DataFrame, times: Times) -> DataFrame:
        """Each row once for every open window that it is in; rows that are not on time stay as they are."""
        number = self._windows_per_row
        if number == 1:
            return rows
        ends = ", ".join(f"{END} - {i * self.kind.slide_us}L" for i in range(number))
        ends_sql = f"explode(if({FLAG} = {ON_TIME}, array({ends}), array({END})))"
        others = [f.col(quoted(name)) for name in rows.columns if name != END]
        closed = "" if times.watermark_us is None else f" and {END} > {times.watermark_us}L"
        spread = rows.select(*others, f.expr(ends_sql).alias(END))
        return spread.where(f"{FLAG} <> {ON_TIME} or ({END} > {TIME}{closed})")

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Merge an epoch's partial values into their windows, and let go of the windows that are final."""
        judged = self.clock.judge(rows)
        return self._merged(self._sorted(judged.on_time), judged, spine, times)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same from rows as the input has them."""
        rows: pa.Table = sides[0]
        flags = self.clock.flags(self.clock.micros(rows), times, self._last_end)
        judged = self.clock.judge_rows(rows, flags)
        at, end = self._windows(np.asarray(self.clock.micros(judged.on_time)), times)
        spread = judged.on_time if at is None else take_rows(judged.on_time, at)
        return self._merged(self.folding.fold(spread, end, self.keys), judged, spine, times)

    def _last_end(self, micros: Ints) -> Ints:
        """The end of the last window that a time is in."""
        last: Ints = micros - micros % self.kind.slide_us + self.kind.size_us
        return last

    def _windows(self, micros: Ints, times: Times) -> tuple[Ints | None, Ints]:
        """Every open window that each row is in: the row's number, None if each is in one, and the window's end."""
        last = self._last_end(micros)
        if self._windows_per_row == 1:
            return None, last
        ends = last[:, None] - np.arange(self._windows_per_row) * self.kind.slide_us
        open_ = ends > micros[:, None]
        if times.watermark_us is not None:
            open_ &= ends > times.watermark_us
        at, number = np.nonzero(open_)
        return at, ends[at, number]

    @property
    def _windows_per_row(self) -> int:
        return -(-self.kind.size_us // self.kind.slide_us)

    def _merged(self, rows: pa.Table, judged: Judged, spine: Spine, times: Times) -> Changes:
        layer, added = self.folding.upsert(rows, spine)
        closed = self._closed(spine, times)
        outputs = {"out": self._results(closed if self.final else layer), **judged.outputs}
        added -= closed.num_rows
        return Changes(layer, outputs, added, judged.counts, judged.newest_us, held=self._label)

    @property
    def _label(self) -> str | None:
        """The state's column of the label, where windows of a substream are held back until they close."""
        if not self.final or SUBSTREAM not in self.keys.names:
            return None
        return self.keys.stored.names[self.keys.names.index(SUBSTREAM)]

    def _closed(self, spine: Spine, times: Times) -> pa.Table:
        if times.watermark_us is None:
            return self.state.changes.empty_table()
        return spine.rows(last_bucket=times.watermark_us)

    def _results(self, rows: pa.Table) -> pa.Table:
        end = np.asarray(single(rows[BUCKET]))
        kind = self.output.field(WINDOW_END).type
        keys = [single(rows[name]) for name in self.state.keys.names]
        values = self.folding.finish([single(rows[name]) for name in self.state.values.names])
        start = as_timestamps(end - self.kind.size_us, kind)
        return pa.table([*keys, start, as_timestamps(end, kind), *values], self.output)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        keys = [single(rows[name]) for name in self.state.keys.names]
        bucket, h = (np.asarray(single(rows[name])) for name in (BUCKET, STATE_HASH))
        return take_rows(rows, canonical_order(bucket, h, keys))


def bind_window(
    stage: str, node: WindowAggregate, df: DataFrame, clock: Clock, ansi: bool, hash_bits: int
) -> WindowOperator:
    """Work out the types of a windowed aggregate over a DataFrame that has the input's schema."""
    assert isinstance(node.window.kind, Sliding)
    keys = BoundKeys.of(stage, df.schema, node.keys)
    folding = bind_folding(stage, df, node.aggregates, ansi)
    output = window_output(keys, clock, folding)
    received = [(STATE_HASH, pa.int64()), (BUCKET, pa.int64()), *keys.stored, *folding.partials]
    return WindowOperator(
        stage,
        keys,
        folding,
        clock,
        node.window.kind,
        node.window.emit == "final",
        pa.schema([*received, *clock.received]),
        StateSchema(keys.stored, folding.stored),
        arrow_schema(stage, output),
        output,
        hash_bits,
        window_description(node, keys, folding, hash_bits),
        clock.direct(keys, folding, df.schema),
    )


def window_output(keys: BoundKeys, clock: Clock, folding: Folding) -> t.StructType:
    """Keys, the window, the aggregates."""
    window = [t.StructField(name, clock.timestamp, True) for name in (WINDOW_START, WINDOW_END)]
    return t.StructType([*keys.fields, *window, *folding.fields])


def window_description(node: WindowAggregate, keys: BoundKeys, folding: Folding, hash_bits: int) -> Json:
    """What must not change while there is state."""
    return {
        "operator": str(node.window.kind),
        "keys": keys.description,
        "aggregates": folding.description,
        "hash_bits": hash_bits,
    }
