"""Aggregates whose value is a list: all values of a group, its different ones, or the k largest."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.flow.aggregates import Aggregate


@dataclass(frozen=True)
class Collected(Aggregate):
    """All values of a group, or its different ones, in a fixed order."""

    # Changes no result, so it is no part of what a stage's code is.
    most: int = field(default=limits.COLLECTED_VALUES_MAX, repr=False)

    @property
    def compared(self) -> tuple[str, ...]:
        """What the list is ordered by."""
        return () if self.by is None else (self.by,)

    def sql(self) -> str:
        """The aggregate as Spark SQL spells it."""
        x, by = self.expression, self.by
        if by is None:
            return f"sort_array({self.function}({x}))"
        rows = f"collect_list(struct({by} as t, {x} as x)) filter (where ({x}) is not null)"
        return f"transform(sort_array({rows}), row -> row.x)"

    def text(self) -> str:
        """As `holdfast explain` shows it."""
        return f"{self.function}({self.expression}{'' if self.by is None else f', by {self.by}'})"


@dataclass(frozen=True)
class Top(Aggregate):
    """The k largest, or smallest, values of a group."""

    k: int = 1
    smallest: bool = False

    @property
    def compared(self) -> tuple[str, ...]:
        """The order, and the values that settle ties."""
        return self.written

    def sql(self) -> str:
        """The aggregate as Spark SQL spells it."""
        function = "min_by" if self.smallest else "max_by"
        return f"{function}({self.expression}, {self.by or self.expression}, {self.k})"


def collect_list(
    expression: str, *, by: str | None = None, max: int = limits.COLLECTED_VALUES_MAX
) -> Aggregate:
    """All non-null values of `expression`, as a list: Spark's `collect_list`, but in an order that is always the same.

    `by`, an SQL expression, orders the list, ascending and nulls first; values with equal `by`, and all values without it,
    stand in their own order, smallest first (structs and arrays in a fixed order of no meaning). So any split into epochs and tasks gives the same list. Spark's own order is
    undefined; as multisets the two are equal. A group without values has an empty list.

    The state keeps the values, and an epoch that touches a key writes its list again, to the state and to the output: a key
    with more than `max` values (default 10,000) stops the flow with an `InputError`, and it goes on where it stood when it
    is run with a larger `max`. Text, numbers, decimals, dates, timestamps, booleans, binary, and structs and arrays of
    them can be collected; maps are refused when the flow is bound.

    - `expression`: Spark SQL, as text.

    Raises `hf.PlanError` for a `max` that is not such a number.

    >>> collect_list("page", by="at", max=1_000).text()
    'collect_list(page, by at)'
    """
    _check_count("max", max, "collect_list")
    return Collected("collect_list", expression, by, max)


def collect_set(expression: str, *, max: int = limits.COLLECTED_VALUES_MAX) -> Aggregate:
    """The different non-null values of `expression`, as a list, smallest first: Spark's `collect_set` in a fixed order.

    NaN equals NaN; -0.0 equals 0.0 and comes as 0.0. A key with more than `max` different values (default 10,000) stops the
    flow, as with `collect_list`. To count them, `count_distinct` takes less room.

    Raises `hf.PlanError` for a `max` that is not such a number.

    >>> collect_set("lower(page)").text()
    'collect_set(lower(page))'
    """
    _check_count("max", max, "collect_set")
    return Collected("collect_set", expression, None, max)


def top_k(expression: str, k: int, *, by: str | None = None, smallest: bool = False) -> Aggregate:
    """The `k` largest values of `expression`, largest first, as a list; with `by`, the values in the rows with the largest `by`.

    It is Spark's `max_by(expression, by, k)`, or `min_by` with `smallest=True`, which has the smallest first. Of rows with
    equal `by`, which Spark picks from as it likes, the larger value comes first (with `smallest=True` the smaller one), so
    that a replay agrees. Equal values each count. Rows without a `by` do not count, nor, where there is no `by`, do nulls; with
    a `by`, the value of a row may be null, and is then the smallest. NaN is larger than any number; -0.0 comes as 0.0. The
    list is shorter where there are fewer rows, and null where there is none. `k` is at most 10,000.

    Raises `PlanError` for a `k` that is not such a number.

    >>> top_k("page", 3, by="ms").sql()
    'max_by(page, ms, 3)'
    """
    _check_count("k", k, "top_k")
    if k > limits.TOP_VALUES_MAX:
        raise PlanError(
            f"k={k:,} of top_k is more than {limits.TOP_VALUES_MAX:,}",
            operation="describe",
            hint="Write a smaller k; hf.collect_list(..., max=...) keeps all values, and a percentile says where most lie.",
        )
    return Top("top_k", expression, by, k, smallest)


def _check_count(option: str, number: object, function: str) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise PlanError(
            f"{option}={number!r} of {function} is not a number of values of at least 1", operation="describe"
        )
