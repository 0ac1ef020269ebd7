"""The aggregates that there are: how each is computed by Spark SQL, stored and merged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.aggregates import Aggregate
from holdfast.spark.operators import hyperloglog
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.collected import CollectList, CollectSet, TopK
from holdfast.spark.operators.count_distinct import CountDistinct
from holdfast.spark.operators.extremes import Extreme, FirstBy, Largest, LastBy
from holdfast.spark.operators.percentile import Percentiles


class Count(Accumulator):
    """count(x)"""

    def merge(self, old: Columns, new: Columns) -> Columns:
        return [pc.add(pc.fill_null(old[0], 0), new[0])]

    def lifts(self, kind: pa.DataType) -> bool:
        return True

    def lift(self, x: pa.Array) -> Columns:
        return [_present(x)]


class SumInteger(Accumulator):
    """sum of integers: bigint, which wraps or refuses as the session's ANSI mode says."""

    def merge(self, old: Columns, new: Columns) -> Columns:
        left, right = _longs(old[0]), _longs(new[0])
        total = left + right
        self.overflow(((left ^ total) & (right ^ total)) < 0)
        return [_either(pa.array(total), old[0], new[0])]

    def lifts(self, kind: pa.DataType) -> bool:
        return pa.types.is_signed_integer(kind)

    def lift(self, x: pa.Array) -> Columns:
        return [x.cast(pa.int64())]


class SumDouble(Accumulator):
    """sum of floating point numbers; inexact in its last bits, as declared for such columns."""

    def merge(self, old: Columns, new: Columns) -> Columns:
        total = pc.add(pc.fill_null(old[0], 0.0), pc.fill_null(new[0], 0.0))
        return [_either(total, old[0], new[0])]

    def lifts(self, kind: pa.DataType) -> bool:
        return pa.types.is_floating(kind)

    def lift(self, x: pa.Array) -> Columns:
        return [x.cast(pa.float64())]


class SumDecimal(Accumulator):
    """sum of decimals; the second column counts values, so that an overflow stays one."""

    def merge(self, old: Columns, new: Columns) -> Columns:
        left, right = (pc.fill_null(column.cast(_wide(self.stored[0])), 0) for column in (old[0], new[0]))
        total = pc.add(left, right)
        wide = pc.greater_equal(pc.abs(total), _bound(self.stored[0], total.type))
        broken = pc.or_(wide, pc.or_(_overflown(old), _overflown(new)))
        self.overflow(broken)
        values = pc.if_else(broken, pa.scalar(None, total.type), total).cast(self.stored[0])
        count = pc.add(pc.fill_null(old[1], 0), new[1])
        return [pc.if_else(pc.equal(count, 0), pa.scalar(None, self.stored[0]), values), count]

    def lifts(self, kind: pa.DataType) -> bool:
        return pa.types.is_decimal(kind)

    def lift(self, x: pa.Array) -> Columns:
        return [x.cast(self.stored[0]), _present(x)]


class AverageDouble(Accumulator):
    """avg of numbers: a double sum and a count."""

    def merge(self, old: Columns, new: Columns) -> Columns:
        total = pc.add(pc.fill_null(old[0], 0.0), pc.fill_null(new[0], 0.0))
        return [total, pc.add(pc.fill_null(old[1], 0), new[1])]

    def lifts(self, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def lift(self, x: pa.Array) -> Columns:
        return [x.cast(pa.float64(), safe=False), _present(x)]

    def finish(self, state: Columns) -> pa.Array:
        count = pc.if_else(pc.equal(state[1], 0), pa.scalar(None, pa.int64()), state[1])
        return pc.divide(state[0], count.cast(pa.float64()))


class AverageDecimal(SumDecimal):
    """avg of decimals: the quotient is rounded half up to Spark's result type."""

    def finish(self, state: Columns) -> pa.Array:
        count = pc.if_else(pc.equal(state[1], 0), pa.scalar(None, pa.int64()), state[1])
        total = state[0].cast(pa.decimal256(38, state[0].type.scale))
        quotient = pc.divide(total, count.cast(pa.decimal256(19, 0)))
        rounded = pc.round(quotient, self.final.scale, "half_towards_infinity")
        wide = pc.greater_equal(pc.abs(rounded), _bound(self.final, rounded.type))
        self.overflow(pc.fill_null(wide, False))
        return pc.if_else(wide, pa.scalar(None, rounded.type), rounded).cast(self.final)


class Variance(Accumulator):
    """variance and stddev: count, mean and sum of squared deviations, merged as Chan et al. do."""

    root = False

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """Count, mean and squared deviations of the epoch."""
        d = f"cast({aggregate.expression} as double)"
        return [f"count({d})", f"coalesce(avg({d}), 0D)", f"coalesce(var_pop({d}) * count({d}), 0D)"]

    def merge(self, old: Columns, new: Columns) -> Columns:
        n_old, n_new = (_longs(column[0]).astype(np.float64) for column in (old, new))
        mean_old, mean_new = (_doubles(column[1]) for column in (old, new))
        m2_old, m2_new = (_doubles(column[2]) for column in (old, new))
        n = n_old + n_new
        share = np.divide(n_new, n, out=np.zeros_like(n), where=n > 0)
        with np.errstate(invalid="ignore", over="ignore"):
            delta = mean_new - mean_old
            both = (n_old > 0) & (n_new > 0)
            mean = np.where(both, mean_old + delta * share, np.where(n_new > 0, mean_new, mean_old))
            m2 = np.where(both, m2_old + m2_new + delta * delta * n_old * share, m2_old + m2_new)
        return [pa.array(n.astype(np.int64)), pa.array(mean), pa.array(m2)]

    def lifts(self, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def lift(self, x: pa.Array) -> Columns:
        mean = _doubles(x.cast(pa.float64(), safe=False))
        with np.errstate(invalid="ignore"):
            return [
                _present(x),
                pa.array(mean),
                pa.array(mean - mean),
            ]  # the last is NaN where Spark's would be

    def finish(self, state: Columns) -> pa.Array:
        n, m2 = _longs(state[0]), _doubles(state[2])
        with np.errstate(invalid="ignore"):
            value = np.divide(m2, n - 1.0, out=np.zeros_like(m2), where=n > 1)
            value = np.sqrt(value) if self.root else value
        return pa.array(value, mask=n < 2)


class StandardDeviation(Variance):
    """stddev(x)"""

    root = True


class ApproxDistinct(Accumulator):
    """approx_distinct(x): the registers of a HyperLogLog."""

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """Registers and ranks of the epoch."""
        return [hyperloglog.partial_sql(aggregate.expression)]

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """The registers, a byte each."""
        return (hyperloglog.REGISTERS_TYPE,)

    def merge(self, old: Columns, new: Columns) -> Columns:
        return [hyperloglog.merge(old[0], new[0])]

    def combine(self, left: Columns, right: Columns) -> Columns:
        """The larger of each two registers."""
        return [hyperloglog.union(left[0], right[0])]

    def finish(self, state: Columns) -> pa.Array:
        return hyperloglog.estimate(state[0])


def partials(aggregate: Aggregate, decimal: bool) -> list[str]:
    """The Spark SQL that computes an epoch's part of an aggregate."""
    kind, x = _CLASSES.get(aggregate.function), aggregate.expression
    if kind is not None:
        return kind.partial_sql(aggregate)
    if aggregate.function == "sum":
        return [f"sum({x})", f"count({x})"] if decimal else [f"sum({x})"]
    return [f"sum({x})" if decimal else f"sum(cast({x} as double))", f"count({x})"]


def accumulator(
    name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
) -> Accumulator:
    """The accumulator for an aggregate whose partials have the given types."""
    kind = _CLASSES.get(aggregate.function) or _by_type(name, aggregate, types[0])
    return kind.of(name, aggregate, types, final, ansi)


def finished(name: str, function: str, stored: Columns, final: pa.DataType, options: Json) -> pa.Array:
    """An aggregate's values from what is stored of it, for whoever reads the state later; an overflow is null."""
    types = tuple(column.type for column in stored)
    kind = _CLASSES.get(function) or _by_type(name, Aggregate(function, name), types[0])
    return kind(name, False, types, final, **options).finish(stored)


def _by_type(name: str, aggregate: Aggregate, type_: pa.DataType) -> type[Accumulator]:
    average = aggregate.function == "avg"
    if pa.types.is_decimal(type_):
        return AverageDecimal if average else SumDecimal
    if pa.types.is_int64(type_):
        return SumInteger
    if pa.types.is_float64(type_):
        return AverageDouble if average else SumDouble
    raise PlanError(f"aggregate {name!r} = {aggregate.sql()} has type {type_}", operation="bind")


_CLASSES: dict[str, type[Accumulator]] = {
    "count": Count,
    "min": Extreme,
    "max": Largest,
    "first": FirstBy,
    "last": LastBy,
    "approx_distinct": ApproxDistinct,
    "count_distinct": CountDistinct,
    "collect_list": CollectList,
    "collect_set": CollectSet,
    "top_k": TopK,
    "percentile": Percentiles,
    "variance": Variance,
    "stddev": StandardDeviation,
}


def _either(total: pa.Array, old: pa.Array, new: pa.Array) -> pa.Array:
    """Null where both sides are: Spark's sum of nothing."""
    return pc.if_else(pc.and_(pc.is_null(old), pc.is_null(new)), pa.scalar(None, total.type), total)


def _overflown(columns: Columns) -> pa.Array:
    """A sum that is null although values were counted has overflowed before."""
    return pc.and_(pc.is_null(columns[0]), pc.greater(pc.fill_null(columns[1], 0), 0))


def _present(column: pa.Array) -> pa.Array:
    """1 where there is a value, 0 elsewhere."""
    return column.is_valid().cast(pa.int64())


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)


def _wide(type_: pa.DataType) -> pa.DataType:
    return pa.decimal256(type_.precision, type_.scale)


def _bound(type_: pa.DataType, wide: pa.DataType) -> pa.Scalar:
    """The smallest magnitude that a decimal type cannot hold."""
    digits = type_.precision - type_.scale
    return pa.scalar(10**digits, pa.decimal256(76 - wide.scale, 0)).cast(pa.decimal256(76, wide.scale))


def _longs(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(column, 0))


def _doubles(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(column, 0.0))
