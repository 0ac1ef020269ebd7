"""Aggregates as descriptions: `hf.sum("amount * qty")` names a Spark SQL function and its argument.

Types, nulls, NaN and overflow are those of the Spark SQL function of the same name. Nothing here needs
a SparkSession, so that a flow file can be imported anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """About how many different non-null values there are: HyperLogLog with 512 registers.

    The standard error is 4.6%; a replay gives the same number.
    """
    return Aggregate("approx_distinct", expression)
