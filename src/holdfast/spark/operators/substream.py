"""Labels rows with their substream, and knows which labels it has closed.

Invariants: rows go through in the epoch that reads them, so nothing is held back; under a closed label no row goes
through. Where labels are windows, the watermark that closes one makes its rows late, and there is nothing to remember.
Where they are not, the state holds closed labels and nothing else, in slices of the plan's time, and forgets them a
slice at a time; all rows of a label are then seen by one task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.nodes import Substream
from holdfast.flow.substreams import SUBSTREAM, Labelling
from holdfast.protocols.watermark import Timing
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import HASH, PREFIX, hash_sql, quoted, sent, unfit_for_comparison
from holdfast.spark.operators.contract import Changes, Shape, Times
from holdfast.spark.operators.ends import check_labels
from holdfast.spark.operators.event_time import (
    INPUT,
    NO_LABEL,
    ON_TIME,
    REASONS,
    TOO_LATE,
    Clock,
    counted,
)
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.state.canonical import Ints, canonical_order, in_slots
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema, single, take_rows
from holdfast.state.spine import Spine

LABEL = f"{PREFIX}label"
CLOSES = f"{PREFIX}closes"

_STATE = StateSchema(pa.schema([("label", pa.string())]), pa.schema([("closed_us", pa.int64())]))
_SECOND_US = 1_000_000


@dataclass(frozen=True)
class SubstreamOperator:
    """A labelling, bound to the types of its input."""

    labelling: Labelling
    clock: Clock | None  # None where labels have no time
    ports: frozenset[str]
    side: pa.Schema  # of the input rows
    settling: tuple[str, ...]  # received columns that put rows in order
    spread_by: tuple[
        str, ...
    ]  # input columns whose hash says which task a row goes to; the label's if there are none
    received: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json
    state: StateSchema = _STATE

    @property
    def timing(self) -> Timing:
        """By event time, or, for what is remembered of closed labels, by the plan's."""
        if self.clock is not None:
            return Timing((self.clock.time.column,), self.clock.time.late_us)
        return Timing((), 0, keeps_us=1, slice_us=self._slice_us)

    @property
    def view(self) -> StateView:
        """The closed labels that are remembered, and when the stage closed them."""
        closed = ViewColumn("closed", "timestamp", pa.timestamp("us", "UTC"), ("closed_us",))
        label = ViewColumn(SUBSTREAM, "string", pa.string(), ("label",))
        return StateView.of(self.state, [label, closed], self.timing)

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """Whole rows with what makes their label, in the partition of a task."""
        marked = df
        if self.labelling.by is not None:
            marked = marked.withColumn(LABEL, f.expr(f"cast(({self.labelling.by}) as string)"))
        if self.labelling.closed_when is not None:
            marked = marked.withColumn(CLOSES, f.expr(f"coalesce(({self.labelling.closed_when}), false)"))
        h = hash_sql(self.spread_by or [LABEL], self.hash_bits)
        hashed = marked.withColumn(HASH, f.expr(h))
        columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(self.side.names)]
        marks = [f.col(name) for name in self.received.names if name.startswith(PREFIX)]
        return sent(hashed, shape.boundaries).select(f.col(HASH).alias(STATE_HASH), *marks, *columns)

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Let rows through with their label, unless it is closed."""
        rows = self._ordered(rows)
        labels, flags = self._judged(rows, spine, times)
        passing = np.flatnonzero(flags == ON_TIME)
        out = self._columns(take_rows(rows, passing)).append_column(
            pa.field(SUBSTREAM, pa.string()), labels.take(pa.array(passing))
        )
        closing = self._closing(rows, labels, flags)
        layer = self._layer(closing, spine, times)
        newest = self.clock.newest(rows, self._micros(rows), flags) if self.clock else ()
        return Changes(
            layer,
            {"out": out, **self._sides(rows, flags)},
            layer.num_rows - self._forgotten(spine, times),
            counted(flags),
            newest,
            closing=closing,
        )

    def _judged(self, rows: pa.Table, spine: Spine, times: Times) -> tuple[pa.Array, np.ndarray]:
        """The label of every row, and whether it goes through."""
        labels = single(rows[LABEL]) if self.labelling.by is not None else None
        if self.clock is not None:
            micros = self._micros(rows)
            flags = self.clock.flags(micros, times, self._window_end)
            labels = _joined(labels, self._window_labels(micros))
        else:
            assert labels is not None
            flags = np.full(rows.num_rows, ON_TIME, np.int8)
            flags[self._is_closed(labels, spine)] = TOO_LATE
        if labels.null_count:
            flags[np.asarray(labels.is_null()) & (flags == ON_TIME)] = NO_LABEL
        return labels, flags

    def _is_closed(self, labels: pa.Array, spine: Spine) -> np.ndarray:
        """Which rows come after the end of their substream at this stage."""
        encoded = labels.dictionary_encode()
        h = (
            hash_columns([encoded.dictionary], self.hash_bits)
            if len(encoded.dictionary)
            else np.zeros(0, np.int64)
        )
        order = canonical_order(np.zeros(len(h), np.int64), h, [encoded.dictionary])
        found = spine.lookup_everywhere(h[order], [encoded.dictionary.take(pa.array(order))])
        closed = np.zeros(len(h) + 1, np.bool_)  # the last stands for null
        closed[order[found.needle]] = True
        at: np.ndarray = closed[np.asarray(encoded.indices.fill_null(len(h)))]
        return at

    def _closing(self, rows: pa.Table, labels: pa.Array, flags: np.ndarray) -> list[str]:
        """Labels that a row of this epoch closes."""
        if self.labelling.closed_when is None:
            return []
        last = np.asarray(single(rows[CLOSES]).fill_null(False)) & (flags == ON_TIME)
        return check_labels(pc.unique(labels.filter(pa.array(last))))

    def _layer(self, closing: list[str], spine: Spine, times: Times) -> pa.Table:
        """What is to be remembered of labels that end in this epoch."""
        if self.clock is not None:
            return self.state.changes.empty_table()
        labels = pa.array(sorted({*closing, *times.ends}), pa.string())
        h = hash_columns([labels], self.hash_bits) if len(labels) else np.zeros(0, np.int64)
        own = np.flatnonzero(in_slots(h, spine.slots))
        mine, h = labels.take(pa.array(own)), h[own]
        order = canonical_order(np.zeros(len(h), np.int64), h, [mine])
        assert self.labelling.remember_us is not None
        forgotten = -(-(times.now_us + self.labelling.remember_us) // self._slice_us) * self._slice_us
        bucket, now = (pa.array(np.full(len(h), at, np.int64)) for at in (forgotten, times.now_us))
        live = pa.repeat(pa.scalar(True), len(h))
        return pa.table(
            [bucket, pa.array(h[order]), live, mine.take(pa.array(order)), now], self.state.changes
        )

    def _forgotten(self, spine: Spine, times: Times) -> int:
        floor = self.timing.floor(times.watermark_us)
        return 0 if self.clock is not None or floor is None else spine.count(last_bucket=floor - 1)

    @property
    def _slice_us(self) -> int:
        return max(1, (self.labelling.remember_us or 0) // limits.EXPIRY_SLICES)

    def _micros(self, rows: pa.Table) -> pa.Array:
        assert self.clock is not None
        return single(rows[f"c{self.side.names.index(self.clock.time.column)}"]).view(pa.int64())

    def _window_end(self, micros: Ints) -> Ints:
        assert self.labelling.every_us is not None
        end: Ints = micros - micros % self.labelling.every_us + self.labelling.every_us
        return end

    def _window_labels(self, micros: pa.Array) -> pa.Array:
        """The start of each row's window, spelled once a window."""
        assert self.labelling.every_us is not None
        known = np.asarray(micros.fill_null(0))
        starts, at = np.unique(known - known % self.labelling.every_us, return_inverse=True)
        seconds = pa.array(starts // _SECOND_US).view(pa.timestamp("s"))
        spelled = pc.strftime(seconds, format="%Y-%m-%dT%H:%M:%SZ")
        return spelled.take(pa.array(at, mask=np.asarray(micros.is_null())))

    def _ordered(self, rows: pa.Table) -> pa.Table:
        h = np.asarray(single(rows[STATE_HASH]))
        ties = [single(rows[name]) for name in self.settling]
        return take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, ties))

    def _columns(self, rows: pa.Table) -> pa.Table:
        return pa.table([single(rows[f"c{i}"]) for i in range(len(self.side))], schema=self.side)

    def _sides(self, rows: pa.Table, flags: np.ndarray) -> dict[str, pa.Table]:
        sides = {}
        for port in sorted(self.ports):
            wanted = np.isin(flags, [flag for flag, (_, to) in REASONS.items() if to == port])
            if wanted.any():
                sides[port] = self._columns(take_rows(rows, np.flatnonzero(wanted)))
        return sides


def _joined(by: pa.Array | None, windows: pa.Array) -> pa.Array:
    return windows if by is None else pc.binary_join_element_wise(by, windows, "/")


def bind_substream(
    stage: str,
    node: Substream,
    df: DataFrame,
    clock: Clock | None,
    inputs: int,
    ports: frozenset[str],
    hash_bits: int,
) -> SubstreamOperator:
    """Work out the types of a labelling over a DataFrame that has the input's schema."""
    if SUBSTREAM in (name.lower() for name in df.schema.names):
        raise PlanError(
            f"there is a column {SUBSTREAM!r} already",
            operation="bind",
            stage=stage,
            hint="Rename or drop it in a transform before; rows that have a label keep it.",
        )
    labelling = node.labelling
    _check_expressions(stage, labelling, df)
    side = arrow_schema(stage, df.schema)
    comparable = [not unfit_for_comparison(field.dataType) for field in df.schema.fields]
    marks = [
        *([(LABEL, pa.string())] if labelling.by is not None else []),
        *([(CLOSES, pa.bool_())] if labelling.closed_when is not None else []),
        *([(INPUT, pa.int32())] if clock is not None and inputs > 1 else []),
    ]
    columns = [(f"c{i}", field.type) for i, field in enumerate(side)]
    spread = [field.name for field, fit in zip(df.schema.fields, comparable, strict=True) if fit]
    fields = [t.StructField(field.name, field.dataType, True) for field in df.schema.fields]
    return SubstreamOperator(
        labelling,
        clock,
        ports,
        side,
        tuple(f"c{i}" for i, fit in enumerate(comparable) if fit),
        tuple(spread) if clock is not None else (),
        pa.schema([(STATE_HASH, pa.int64()), *marks, *columns]),
        t.StructType([*fields, t.StructField(SUBSTREAM, t.StringType(), True)]),
        hash_bits,
        {
            "operator": "substream",
            "labels": "windows" if clock is not None else "by expression",
            "every": f"{labelling.every_us} us",
            "hash_bits": hash_bits,
        },
    )


def _check_expressions(stage: str, labelling: Labelling, df: DataFrame) -> None:
    """Spark must be able to compute a label, and whether a row is the last of it."""
    if labelling.by is not None:
        _typed(stage, df, f"cast(({labelling.by}) as string)", f"by={labelling.by!r}")
    if labelling.closed_when is not None:
        kind = _typed(stage, df, labelling.closed_when, f"closed_when={labelling.closed_when!r}")
        if not isinstance(kind, t.BooleanType):
            raise PlanError(
                f"closed_when={labelling.closed_when!r} is a {kind.simpleString()}, not a boolean",
                operation="bind",
                stage=stage,
            )


def _typed(stage: str, df: DataFrame, sql: str, what: str) -> t.DataType:
    try:
        return df.select(f.expr(sql)).schema.fields[0].dataType
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f"{what} cannot be computed: {error.getMessage() or error}",
            operation="bind",
            stage=stage,
            hint=f"The columns are {', '.join(df.columns)}.",
        ) from error
