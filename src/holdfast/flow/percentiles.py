"""Percentiles as descriptions: which ranks, and how near to the exact value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.flow.aggregates import Aggregate


@dataclass(frozen=True)
class Percentile(Aggregate):
    """One percentile, or several, of the values of a group."""

    ranks: tuple[float, ...] = (0.5,)
    single: bool = True  # whether the result is a number, or a list of numbers
    error: float = 0.01
    # Changes no result, so it is no part of what a stage's code is.
    most: int = field(default=limits.PERCENTILE_BUCKETS_MAX, repr=False)

    def sql(self) -> str:
        """What Spark SQL computes exactly."""
        ranks = ", ".join(f"{rank!r}D" for rank in self.ranks)
        return f"percentile({self.expression}, {ranks if self.single else f'array({ranks})'})"

    def text(self) -> str:
        """As `holdfast explain` shows it."""
        ranks = ", ".join(f"{rank:g}" for rank in self.ranks)
        return (
            f"percentile({self.expression}, {ranks if self.single else f'[{ranks}]'}, error {self.error:g})"
        )


def percentile(
    expression: str,
    p: float | Sequence[float],
    *,
    error: float = 0.01,
    max: int = limits.PERCENTILE_BUCKETS_MAX,
) -> Aggregate:
    """The value below which a share `p` of the numbers of `expression` lies, within a relative error; 0.5 is the median.

    `p` is a number from 0 to 1, and the result a double; or a list of such numbers, and the result a list of doubles. Ranks are
    those of Spark's exact `percentile`: with n values in order, position p * (n - 1), and between two positions a
    value between theirs. The values at both are known to within `error` of themselves (default 0.01, one percent; at least
    0.0001), and so is the result where both have the same sign. Nulls do not count; NaN is larger than infinity; numbers nearer
    to zero than 2.3e-308 are zero. Without values the result is null.

    The state is a count per bucket, 12 bytes each: so many buckets per power of two that `error` is kept, 64 for one percent,
    whatever the number of rows. The counts are exact, so any split into epochs, tasks and sessions gives the same bits. A key
    with more than `max` buckets (default 100,000) stops the flow with an `InputError`; it goes on when it is run with a larger
    `max`.

    Raises `PlanError` for a `p`, an `error` or a `max` out of its range, and, when the flow is bound, for an expression that
    is not a number.

    >>> percentile("ms", [0.5, 0.99]).text()
    'percentile(ms, [0.5, 0.99], error 0.01)'
    """
    ranks = _listed(p)
    wrong = [rank for rank in ranks if not _is_number(rank) or not 0 <= rank <= 1]
    if wrong or not ranks:
        raise PlanError(
            f"p={p!r} of percentile is not a number from 0 to 1, or a list of such numbers",
            operation="describe",
            hint="The median is 0.5, the 99th percentile 0.99.",
        )
    if not _is_number(error) or not limits.PERCENTILE_ERROR_MIN <= error < 1:
        raise PlanError(
            f"error={error!r} of percentile is not a number from {limits.PERCENTILE_ERROR_MIN} to below 1",
            operation="describe",
            hint="0.01 is one percent of the value.",
        )
    if not isinstance(max, int) or max < 1:
        raise PlanError(
            f"max={max!r} of percentile is not a number of buckets of at least 1", operation="describe"
        )
    floats = tuple(float(rank) for rank in ranks)
    single = not isinstance(p, Iterable)
    return Percentile("percentile", expression, None, floats, single, float(error), max)


def _listed(p: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(p) if isinstance(p, Iterable) else (p,)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
