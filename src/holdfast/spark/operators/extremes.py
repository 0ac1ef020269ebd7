"""min, max, first and last: of two values one stays, so that order and split do not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import PlanError
from holdfast.flow.aggregates import Aggregate
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.state.canonical import same


class Extreme(Accumulator):
    """min and max of anything that Arrow can compare; NaN is the largest number."""

    largest = False

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """Of values that have an order."""
        _check_order(name, aggregate, types[0])
        return super().of(name, aggregate, types, final, ansi)

    def merge(self, old: Columns, new: Columns) -> Columns:
        return [pc.if_else(_beats(new[0], old[0], self.largest), new[0], old[0])]

    def lifts(self, kind: pa.DataType) -> bool:
        return kind == self.stored[0]

    def lift(self, x: pa.Array) -> Columns:
        return [x]


class Largest(Extreme):
    """max(x)"""

    largest = True


class FirstBy(Accumulator):
    """first(x, by=t): the stored row is t, the hash of x that settles ties, and x."""

    largest = False

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The epoch's first, or last, row."""
        x, by, pick = aggregate.expression, aggregate.by, "max" if cls.largest else "min"
        return [
            f"{pick}(struct({by} as t, xxhash64({x}) as tie, {x} as x)) filter (where ({by}) is not null)"
        ]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """By values that have an order."""
        _check_order(name, aggregate, types[0][0].type)
        return super().of(name, aggregate, types, final, ansi)

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """The fields of the partial struct, side by side."""
        return tuple(field.type for field in self.partials[0])

    def merge(self, old: Columns, new: Columns) -> Columns:
        return self.combine(old, new[0].flatten())

    def combine(self, left: Columns, right: Columns) -> Columns:
        """The row with the smaller (or larger) order; of equal ones, that of the smaller hash."""
        tie = pa.array(same([right[0]], [left[0]]))
        wins = pc.or_(
            _beats(right[0], left[0], self.largest), pc.and_(tie, _beats(right[1], left[1], self.largest))
        )
        return [pc.if_else(wins, theirs, ours) for theirs, ours in zip(right, left, strict=True)]

    def finish(self, state: Columns) -> pa.Array:
        return state[2]


class LastBy(FirstBy):
    """last(x, by=t)"""

    largest = True


def _check_order(name: str, aggregate: Aggregate, ordered: pa.DataType) -> None:
    if pa.types.is_nested(ordered):
        raise PlanError(
            f"aggregate {name!r} = {aggregate.sql()} is by type {ordered}, which has no order here",
            operation="bind",
            hint="Take min or max of a number, string, date, timestamp, binary or boolean.",
        )


def _beats(new: pa.Array, old: pa.Array, largest: bool) -> pa.Array:
    """Where a new value takes the place of the stored one: null never does, and gives way to anything."""
    better = pc.greater(new, old) if largest else pc.less(new, old)
    wins = pc.fill_null(better, pc.is_null(old))
    if pa.types.is_floating(new.type):
        nan_new, nan_old = (pc.fill_null(pc.is_nan(column), False) for column in (new, old))
        by_nan = pc.and_not(nan_new, nan_old) if largest else pc.and_not(nan_old, nan_new)
        wins = pc.if_else(pc.or_(nan_new, nan_old), pc.or_(by_nan, pc.is_null(old)), wins)
    return pc.and_(wins, pc.is_valid(new))
