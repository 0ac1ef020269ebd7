"""Event time inside a job: which rows are on time, and what becomes of the others.

Every row gets a flag. Those on time go to the operator. The others are counted by reason and, where a sink asks
for them, leave by the ports `late` and `quarantine` with all their columns: they ride the same job in groups of
equal rows, each with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.ports import LATE, QUARANTINE
from holdfast.flow.windows import EventTime
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.hashing import can_hash, hash_columns
from holdfast.spark.keys import PREFIX, BoundKeys, hash_sql, quoted, unfit_for_comparison
from holdfast.spark.operators.contract import Direct, Times
from holdfast.spark.operators.folding import Folding, direct_of
from holdfast.spark.operators.view import ViewColumn
from holdfast.state.canonical import Bools, Ints, canonical_order
from holdfast.state.schema import single, take_rows

TIME = f"{PREFIX}t"
FLAG = f"{PREFIX}flag"
INPUT = f"{PREFIX}input"
SIDE = f"{PREFIX}side"
SIDE_HASH = f"{PREFIX}side_h"
ROWS = f"{PREFIX}rows"
NEWEST = f"{PREFIX}newest"

ON_TIME, TOO_LATE, NO_TIME, TOO_FAR, NO_LABEL = range(5)

# By flag: what the status calls it, and the port by which it leaves.
REASONS = {
    TOO_LATE: ("late", LATE),
    NO_TIME: ("no_time", LATE),
    TOO_FAR: ("ahead", QUARANTINE),
    NO_LABEL: ("no_label", LATE),
}


@dataclass(frozen=True)
class Judged:
    """The rows of an epoch: those on time, and the account of the others."""

    on_time: pa.Table
    outputs: dict[str, pa.Table]
    counts: dict[str, int]
    newest_us: list[int | None]


@dataclass(frozen=True)
class Clock:
    """The event time of one stage, bound to its input."""

    time: EventTime
    zoned: bool  # whether the column is a timestamp with a zone
    inputs: int
    ports: frozenset[str]  # that a sink reads
    side: pa.Schema  # of the input rows

    @classmethod
    def of(
        cls, stage: str, time: EventTime, schema: t.StructType, inputs: int, ports: frozenset[str]
    ) -> Clock:
        """Check the time column."""
        if time.column not in schema.names:
            raise PlanError(
                f"there is no time column {time.column!r}",
                operation="bind",
                stage=stage,
                hint=f"The columns are {', '.join(schema.names)}.",
            )
        kind = schema[time.column].dataType
        if not isinstance(kind, t.TimestampType | t.TimestampNTZType):
            raise PlanError(
                f"the time column {time.column!r} is a {kind.simpleString()}, not a timestamp",
                operation="bind",
                stage=stage,
                hint="Cast it in a transform before.",
            )
        return cls(time, isinstance(kind, t.TimestampType), inputs, ports, arrow_schema(stage, schema))

    @property
    def timestamp(self) -> t.DataType:
        """The Spark type of times in the output: that of the time column."""
        return t.TimestampType() if self.zoned else t.TimestampNTZType()

    def view(self, name: str, stored: str, less_us: int = 0) -> ViewColumn:
        """A time that the state holds as microseconds, as a person reads it."""
        zone = "UTC" if self.zoned else None
        return ViewColumn(
            name, self.timestamp.simpleString(), pa.timestamp("us", zone), (stored,), less_us=less_us
        )

    def marked(self, df: DataFrame, times: Times, late_sql: str) -> DataFrame:
        """Add each row's time in microseconds and its flag; `late_sql` says when a row with a time is too late."""
        column = quoted(self.time.column)
        timed = df.withColumn(TIME, f.expr(f"unix_micros(cast({column} as timestamp))"))
        cases = [f"when {TIME} is null then {NO_TIME}"]
        if self.time.max_ahead_us is not None:
            cases.append(f"when {TIME} > {times.now_us + self.time.max_ahead_us}L then {TOO_FAR}")
        if times.watermark_us is not None:
            cases.append(f"when {late_sql} then {TOO_LATE}")
        return timed.withColumn(FLAG, f.expr(f"cast(case {' '.join(cases)} else {ON_TIME} end as tinyint)"))

    def micros(self, rows: pa.Table) -> pa.Array:
        """Event times as numbers."""
        return single(rows[self.time.column]).view(pa.int64())

    def flags(self, micros: pa.Array, times: Times, ends: Callable[[Ints], Ints]) -> np.ndarray:
        """What `marked` says, for rows that reach the task with their time.

        A row is too late once the watermark has reached what `ends` gives for its time.
        """
        known = np.asarray(micros.fill_null(times.now_us))
        flags = np.full(len(known), ON_TIME, np.int8)
        if times.watermark_us is not None:
            flags[ends(known) <= times.watermark_us] = TOO_LATE
        if self.time.max_ahead_us is not None:
            flags[known > times.now_us + self.time.max_ahead_us] = TOO_FAR
        if micros.null_count:
            flags[np.asarray(micros.is_null())] = NO_TIME
        return flags

    def with_sides(self, stage: str, marked: DataFrame) -> DataFrame:
        """Add the whole row where a sink wants it, and null elsewhere; groups then hold equal rows."""
        if not self.ports:
            return marked
        unfit = [name for name in self.side.names if unfit_for_comparison(marked.schema[name].dataType)]
        if unfit:
            raise PlanError(
                f"late rows cannot be sent on with column {unfit[0]!r}: Spark cannot group by its type",
                operation="bind",
                stage=stage,
                hint="Drop or convert the column in a transform before the window.",
            )
        wanted = ", ".join(str(flag) for flag, (_, port) in REASONS.items() if port in self.ports)
        names = ", ".join(quoted(name) for name in self.side.names)
        row = marked.withColumn(SIDE, f.expr(f"if({FLAG} in ({wanted}), struct({names}), null)"))
        return row.withColumn(SIDE_HASH, f.expr(f"if({SIDE} is null, 0L, {hash_sql(self.side.names)})"))

    @property
    def group(self) -> list[str]:
        """Columns by which rows are grouped beside the key."""
        return [FLAG, SIDE, SIDE_HASH] if self.ports else [FLAG]

    @property
    def columns(self) -> list[Column]:
        """Aggregates beside those of the user: the number of rows, and the newest time of each input."""
        newest = [
            f.expr(f"max(if({FLAG} = {TOO_FAR}{self._other(i)}, null, {TIME}))").alias(f"{NEWEST}{i}")
            for i in range(self.inputs)
        ]
        return [f.expr("count(1)").alias(ROWS), *newest]

    @property
    def received(self) -> pa.Schema:
        """What all this is to a task."""
        sides = [(SIDE, pa.struct(list(self.side))), (SIDE_HASH, pa.int64())] if self.ports else []
        newest = [(f"{NEWEST}{i}", pa.int64()) for i in range(self.inputs)]
        return pa.schema([(FLAG, pa.int8()), *sides, (ROWS, pa.int64()), *newest])

    def judge(self, rows: pa.Table) -> Judged:
        """Tell the groups on time from the others."""
        flags, counts = np.asarray(single(rows[FLAG])), np.asarray(single(rows[ROWS]))
        newest = [_largest(single(rows[f"{NEWEST}{i}"])) for i in range(self.inputs)]
        others = flags != ON_TIME
        if not others.any():
            return Judged(rows, {}, {}, newest)
        outputs = {}
        for port in sorted(self.ports):
            chosen = np.flatnonzero(np.isin(flags, [flag for flag, (_, to) in REASONS.items() if to == port]))
            if chosen.size:
                outputs[port] = self._side_rows(rows, chosen, counts)
        return Judged(take_rows(rows, np.flatnonzero(~others)), outputs, counted(flags, counts), newest)

    def judge_rows(self, rows: pa.Table, flags: np.ndarray) -> Judged:
        """Tell rows on time from the others, where each stands for itself."""
        newest = self.newest(rows, self.micros(rows), flags)
        on_time = flags == ON_TIME
        if on_time.all():
            return Judged(rows, {}, {}, newest)
        outputs = {}
        for port in sorted(self.ports):
            chosen = np.flatnonzero(np.isin(flags, [flag for flag, (_, to) in REASONS.items() if to == port]))
            if chosen.size:
                outputs[port] = self._in_order(take_rows(rows.select(self.side.names), chosen))
        return Judged(take_rows(rows, np.flatnonzero(on_time)), outputs, counted(flags), newest)

    def newest(self, rows: pa.Table, micros: pa.Array, flags: np.ndarray) -> list[int | None]:
        """The largest time of each input, but for rows from too far in the future."""
        near = flags != TOO_FAR
        if self.inputs == 1:
            return newest_of(micros, [near])
        origin = np.asarray(single(rows[INPUT]))
        return newest_of(micros, [near & (origin == i) for i in range(self.inputs)])

    def _in_order(self, rows: pa.Table) -> pa.Table:
        columns = [single(column) for column in rows.columns]
        h = hash_columns(columns)
        structs = pa.StructArray.from_arrays(columns, fields=list(self.side))
        return take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, [structs])).cast(self.side)

    def direct(self, keys: BoundKeys, folding: Folding, schema: t.StructType) -> Direct | None:
        """How a task takes the rows of windows itself; rows that leave by a side port are ordered by their hash."""
        if self.ports and not all(can_hash(field.dataType) for field in schema.fields):
            return None
        others = [self.time.column, *(self.side.names if self.ports else ())]
        return direct_of(keys, folding, self.side, others)

    def _side_rows(self, rows: pa.Table, chosen: Ints, counts: Ints) -> pa.Table:
        h = np.asarray(single(rows[SIDE_HASH]))[chosen]
        structs = single(rows[SIDE]).take(pa.array(chosen))
        order = canonical_order(np.zeros(len(h), np.int64), h, [structs])
        repeated = structs.take(pa.array(np.repeat(order, counts[chosen][order])))
        return pa.table(repeated.flatten(), schema=self.side)

    def _other(self, number: int) -> str:
        return f" or {INPUT} <> {number}" if self.inputs > 1 else ""


def counted(flags: np.ndarray, rows: np.ndarray | None = None) -> dict[str, int]:
    """How many rows went which other way."""
    totals = np.bincount(flags, weights=rows, minlength=len(REASONS) + 1)
    return {reason: int(totals[flag]) for flag, (reason, _) in REASONS.items() if totals[flag]}


def as_timestamps(micros: Ints, kind: pa.DataType) -> pa.Array:
    """Microseconds since 1970 as timestamps."""
    return (
        pa.array(micros).view(pa.timestamp("us")).cast(kind)
        if kind.tz is None
        else pa.array(micros).view(kind)
    )


def newest_of(times: pa.Array, feeds: Sequence[Bools]) -> list[int | None]:
    """The largest time among the rows of each feed."""
    return [_largest(times.filter(pa.array(mask))) for mask in feeds]


def _largest(times: pa.Array) -> int | None:
    known = np.asarray(times.drop_null())
    return int(known.max()) if known.size else None
