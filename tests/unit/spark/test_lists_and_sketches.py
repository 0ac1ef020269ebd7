"""Sorted lists and sketches: a function of the values alone, whatever the order, the split and the way in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as t

import holdfast as hf
from holdfast.spark.operators.accumulator import Accumulator
from holdfast.spark.operators.accumulators import accumulator, finished
from holdfast.spark.operators.folding import BoundAggregate, Folding
from holdfast.spark.operators.log_buckets import bits_for, buckets_of, middles
from holdfast.spark.operators.sorted_lists import Lists, gathered, items_of, list_type, together

NAN = math.nan
SMALLEST = 2.0**-1022  # nearer to zero, a double has fewer bits


@given(st.lists(st.floats(), min_size=1), st.sampled_from([0.5, 0.1, 0.01, 0.001, 0.0001]))
@example(
    [0.0, -0.0, NAN, -NAN, math.inf, -math.inf, 5e-324, -SMALLEST, SMALLEST, 1.7976931348623157e308], 0.01
)
def test_the_middle_of_a_bucket_is_within_the_error_of_its_numbers(
    numbers: list[float], error: float
) -> None:
    given_ = np.array(numbers)
    buckets = buckets_of(given_, bits_for(error))
    for number, middle in zip(numbers, middles(buckets, bits_for(error)).tolist(), strict=True):
        if math.isnan(number) or math.isinf(number):
            assert repr(middle) == repr(math.fabs(number) if math.isnan(number) else number)
        elif abs(number) < SMALLEST:
            assert middle == 0
        else:
            assert abs(middle - number) <= error * abs(number)
            assert (middle > 0) == (number > 0)


@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_buckets_ascend_as_numbers_do(numbers: list[float]) -> None:
    buckets = buckets_of(np.array(sorted(numbers)), 6)
    assert (np.diff(buckets) >= 0).all()
    assert buckets_of(np.array([math.inf, NAN]), 6).tolist() == sorted(
        buckets_of(np.array([math.inf, NAN]), 6)
    )


DOUBLES = pa.list_(pa.float64())
ORDERED = pa.list_(pa.struct([("t", pa.float64()), ("x", pa.string())]))
MADE: dict[str, Accumulator] = {
    "list": accumulator("list", hf.collect_list("x"), [DOUBLES], DOUBLES, True),
    "set": accumulator("set", hf.collect_set("x"), [DOUBLES], DOUBLES, True),
    "top": accumulator("top", hf.top_k("x", 3), [DOUBLES], DOUBLES, True),
    "low": accumulator("low", hf.top_k("x", 2, smallest=True), [DOUBLES], DOUBLES, True),
    "median": accumulator("median", hf.percentile("x", [0.5, 1.0]), [DOUBLES], DOUBLES, True),
    "by": accumulator("by", hf.collect_list("s", by="x"), [ORDERED], pa.list_(pa.string()), True),
    "top_by": accumulator("top_by", hf.top_k("s", 2, by="x"), [ORDERED], pa.list_(pa.string()), True),
}
WITH_ORDER = ("by", "top_by")
Row = tuple[float | None, str | None]
rows = st.tuples(
    st.none() | st.sampled_from([0.0, -0.0, NAN, 1.5, -2.0, math.inf]) | st.floats(),
    st.none() | st.sampled_from(["", "a", "b", "ä"]),
)


def folding(name: str) -> Folding:
    by = "x" if name in WITH_ORDER else None
    return Folding(
        (BoundAggregate((), MADE[name], t.StructField(name, t.NullType()), "f", "s" if by else "x", by),)
    )


def as_spark(name: str, part: Sequence[Row]) -> pa.Array:
    """What Spark would have collected of an epoch."""
    if name not in WITH_ORDER:
        return pa.array([[x for x, _ in part if x is not None]], DOUBLES)
    counted = [(x, s) for x, s in part if (s if name == "by" else x) is not None]
    return pa.array([[{"t": x, "x": s} for x, s in counted]], ORDERED)


def as_lifted(name: str, part: Sequence[Row]) -> pa.Array:
    """What a task makes of rows that it has read itself."""
    table = pa.table(
        {"x": pa.array([x for x, _ in part], pa.float64()), "s": pa.array([s for _, s in part], pa.string())}
    )
    one = folding(name)
    return one.reduce(np.zeros(len(part), np.int64), one.lift(table))[0]


def bits(array: pa.Array) -> Any:
    """Everything that can be seen of stored values, the sign of a zero included."""
    return repr(array.to_pylist())


@given(
    st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@example([[(NAN, "a"), (-NAN, "b")], [(0.0, None), (-0.0, "a"), (-0.0, "")], [(None, None)]], None)
@pytest.mark.parametrize("name", MADE)
def test_any_order_split_and_way_in_give_the_same_state(
    name: str, epochs: list[list[Row]], random: Any
) -> None:
    made = MADE[name]
    everything = [row for part in epochs for row in part]
    if random is not None:
        random.shuffle(everything)
    empty = pa.nulls(1, made.stored[0])
    (whole,) = made.merge([empty], [as_spark(name, everything)])
    state = empty
    for number, part in enumerate(epochs):
        (state,) = made.merge([state], [as_spark(name, part) if number % 2 else as_lifted(name, part)])
    (joined,) = made.reduce(
        np.zeros(len(epochs), np.int64), [pa.concat_arrays([as_lifted(name, p) for p in epochs])]
    )
    assert state.type == whole.type == joined.type == made.stored[0]
    assert bits(state) == bits(whole) == bits(joined)


KIND = list_type(pa.string(), pa.float64())


@given(st.lists(st.tuples(st.lists(rows, max_size=6), st.lists(rows, max_size=4)), max_size=5), st.booleans())
def test_values_taken_into_many_lists_stand_where_a_sort_would_put_them(
    lists: list[tuple[list[Row], list[Row]]], descending: bool
) -> None:
    def made(parts: list[list[Row]]) -> Lists:
        flat = [row for part in parts for row in part]
        columns = [pa.array([x for x, _ in flat], pa.float64()), pa.array([s for _, s in flat], pa.string())]
        group = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64)
        return gathered(len(parts), group, items_of(columns, KIND, one_zero=False), descending=descending)

    found = together(made([old for old, _ in lists]), made([new for _, new in lists]), descending=descending)
    assert bits(found.array()) == bits(made([[*new, *old] for old, new in lists]).array())


def key(x: float) -> tuple[bool, float]:
    return (math.isnan(x), x)


@given(st.lists(rows, max_size=12))
def test_results_are_those_of_a_plain_computation(part: list[Row]) -> None:
    def result(name: str) -> Any:
        made = MADE[name]
        stored = made.merge([pa.nulls(1, made.stored[0])], [as_spark(name, part)])
        (value,) = made.finish(stored).to_pylist()
        kinds = {"list": "collect_list", "set": "collect_set", "median": "percentile", "by": "collect_list"}
        later = finished(name, kinds.get(name, "top_k"), stored, made.final, made.options)
        assert repr(later.to_pylist()) == repr([value])
        return value

    numbers = sorted((x for x, _ in part if x is not None), key=key)
    assert str([x + 0.0 for x in result("list")]) == str(
        [abs(x) if math.isnan(x) else x + 0.0 for x in numbers]
    )
    different = {str(abs(x) if math.isnan(x) else x + 0.0) for x in numbers}
    assert sorted(map(str, result("set"))) == sorted(different)
    assert len(result("top") or []) == min(3, len(numbers))
    assert str(result("low") or []) == str([abs(x) if math.isnan(x) else x + 0.0 for x in numbers[:2]])
    texts = [(x is not None, key(x or 0.0), s) for x, s in part if s is not None]
    assert result("by") == [s for *_, s in sorted(texts)]
    assert (result("median") is None) == (not numbers)


NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [False, True, True]),
        (pa.binary(), [b"", b"a", b"b"]),
        (pa.date32(), [date(1969, 1, 1), date(1970, 1, 1), date(2026, 1, 1)]),
        (pa.timestamp("us", "UTC"), [datetime(year, 1, 1, tzinfo=UTC) for year in (1969, 1970, 2026)]),
        (pa.decimal128(38, 2), [Decimal("-1.00"), Decimal("2.00"), Decimal("30.00")]),
        (pa.int8(), [-1, 2, 3]),
        (NESTED, [{"a": 1, "b": None}, {"a": 2, "b": ["x"]}]),
    ],
    ids=str,
)
def test_values_of_every_type_are_put_in_order(kind: pa.DataType, values: list[Any]) -> None:
    lists = pa.list_(kind)
    made = accumulator("d", hf.collect_list("x"), [lists], lists, True)
    for order in (values, values[::-1]):
        (found,) = made.finish(
            made.merge([pa.nulls(1, made.stored[0])], [pa.array([order], lists)])
        ).to_pylist()
        assert found == values
