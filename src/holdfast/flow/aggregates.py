"""Aggregates as descriptions: `hf.sum("amount * qty")` names a Spark SQL function and its argument.

Types, nulls, NaN and overflow are those of the Spark SQL function of the same name. Nothing here needs
a SparkSession, so that a flow file can be imported anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.core import limits
from holdfast.core.errors import PlanError

_DISTINCT = re.compile(r"\s*distinct\b\s*\S", re.IGNORECASE)


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: the Spark SQL function and the SQL expression it is applied to."""

    function: str
    expression: str
    by: str | None = None

    def sql(self) -> str:
        """The aggregate as Spark SQL spells it."""
        arguments = self.expression if self.by is None else f"{self.expression}, {self.by}"
        return f"{_SPARK_NAMES.get(self.function, self.function)}({arguments})"

    @property
    def written(self) -> tuple[str, ...]:
        """The expressions that the user wrote."""
        return (self.expression,) if self.by is None else (self.expression, self.by)

    @property
    def compared(self) -> tuple[str, ...]:
        """Of those, the ones by whose values a task puts rows in order, so that it must know their order."""
        return ()

    def text(self) -> str:
        """The aggregate as `holdfast explain` shows it. Another text is another aggregate, whose state is its own."""
        return self.sql()


@dataclass(frozen=True)
class DistinctCount(Aggregate):
    """The number of different combinations of the values of some expressions."""

    columns: tuple[str, ...] = ()
    # Changes no result, so it is no part of what a stage's code is.
    most: int = field(default=limits.DISTINCT_VALUES_MAX, repr=False)

    @property
    def written(self) -> tuple[str, ...]:
        """The expressions that the user wrote."""
        return self.columns

    def sql(self) -> str:
        """The aggregate as Spark SQL spells it."""
        return f"count(DISTINCT {self.expression})"


_SPARK_NAMES = {"first": "min_by", "last": "max_by", "approx_distinct": "approx_count_distinct"}


def count(expression: str = "1") -> Aggregate:
    """The number of rows, or of rows where `expression` is not null."""
    return Aggregate("count", expression)


def sum(expression: str) -> Aggregate:
    """The sum of the non-null values of `expression`."""
    return Aggregate("sum", expression)


def min(expression: str) -> Aggregate:
    """The smallest non-null value of `expression`."""
    return Aggregate("min", expression)


def max(expression: str) -> Aggregate:
    """The largest non-null value of `expression` (NaN is the largest of all)."""
    return Aggregate("max", expression)


def avg(expression: str) -> Aggregate:
    """The mean of the non-null values of `expression`."""
    return Aggregate("avg", expression)


def stddev(expression: str) -> Aggregate:
    """The sample standard deviation of the non-null values of `expression`."""
    return Aggregate("stddev", expression)


def variance(expression: str) -> Aggregate:
    """The sample variance of the non-null values of `expression`."""
    return Aggregate("variance", expression)


def first(expression: str, *, by: str) -> Aggregate:
    """The value of `expression` in the row with the smallest `by`; rows without a `by` do not count.

    Of rows with equal `by`, the one whose value has the smallest hash is taken, so that a replay agrees.
    """
    return Aggregate("first", expression, by)


def last(expression: str, *, by: str) -> Aggregate:
    """The value of `expression` in the row with the largest `by`; ties are settled as in `first`, the other way."""
    return Aggregate("last", expression, by)


def approx_distinct(expression: str) -> Aggregate:
    """About how many different non-null values `expression` has: HyperLogLog with 512 registers.

    The standard error is 4.6%; a replay gives the same number.
    """
    return Aggregate("approx_distinct", expression)


def count_distinct(*columns: str, max: int = limits.DISTINCT_VALUES_MAX) -> Aggregate:
    """How many different values, or combinations of values, there are: Spark's `count(DISTINCT a, b)`.

    The state keeps 128 bits of each value, 16 bytes, and is written again in every epoch that touches its key. Where there
    may be many, use `approx_distinct`.

    - `columns`: SQL expressions. Rows in which one of them is null do not count.
    - `max`: a key with more different values stops the flow.

    Raises `hf.PlanError` if there is no column, or `max` is below 1.

    >>> count_distinct("user", "lower(page)").sql()
    'count(DISTINCT user, lower(page))'
    """
    if not columns:
        raise PlanError(
            "count_distinct needs at least one column, as in hf.count_distinct('user')", operation="describe"
        )
    if not isinstance(max, int) or max < 1:
        raise PlanError(
            f"max={max!r} of count_distinct is not a number of values of at least 1", operation="describe"
        )
    return DistinctCount("count_distinct", ", ".join(columns), None, tuple(columns), max)


def check_aggregate(name: str, aggregate: Aggregate) -> None:
    """Refuse DISTINCT in front of an expression: an epoch's part of it cannot be put together with another's."""
    for expression in aggregate.written:
        found = _DISTINCT.match(expression)
        if found is None:
            continue
        plain = expression[found.end() - 1 :]
        raise PlanError(
            f"agg({name}=hf.{aggregate.function}({expression!r})) would look for repeats in one epoch at a time",
            operation="describe",
            hint=_instead(aggregate, plain),
        )


def _instead(aggregate: Aggregate, plain: str) -> str:
    match aggregate.function:
        case "count" | "count_distinct" | "approx_distinct":
            return f"Use hf.count_distinct({plain!r}), or hf.approx_distinct({plain!r}) where there are many."
        case "collect_list" | "collect_set":
            return f"Use hf.collect_set({plain!r})."
        case "min" | "max" | "first" | "last":
            return f"Repeats change nothing here: write {plain!r}."
        case _:
            return f"Let each value through once, with .dedup(...), and aggregate {plain!r} behind it."
