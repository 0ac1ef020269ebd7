"""Folding the rows of a group two by two gives what merging them one after the other gives.

Two models: the accumulators themselves, one row at a time, and plain Python over the values. Sums of doubles
and variances agree up to rounding, all else exactly. Not checked: the SQL that makes the partial values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from statistics import variance

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

import holdfast as hf
from holdfast.core.errors import InputError
from holdfast.spark.keys import HASH as KEY_HASH
from holdfast.spark.keys import BoundKeys
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.accumulators import accumulator
from holdfast.spark.operators.folding import BoundAggregate, Folding
from holdfast.spark.operators.hyperloglog import REGISTERS, REGISTERS_TYPE
from holdfast.state.schema import single

NAN = math.nan
PICKED = pa.struct([("t", pa.float64()), ("tie", pa.int64()), ("x", pa.string())])
MONEY = [pa.decimal128(20, 2), pa.int64()]

# The aggregates over a row (whole, double, money, order, label, pair), the types of their partials and results.
AGGREGATES = {
    "n": (hf.count("whole"), [pa.int64()], pa.int64()),
    "whole": (hf.sum("whole"), [pa.int64()], pa.int64()),
    "double": (hf.sum("double"), [pa.float64()], pa.float64()),
    "low": (hf.min("order"), [pa.float64()], pa.float64()),
    "high": (hf.max("order"), [pa.float64()], pa.float64()),
    "word": (hf.max("label"), [pa.string()], pa.string()),
    "first": (hf.first("label", by="order"), [PICKED], pa.string()),
    "last": (hf.last("label", by="order"), [PICKED], pa.string()),
    "mean": (hf.avg("double"), [pa.float64(), pa.int64()], pa.float64()),
    "spread": (hf.variance("double"), [pa.int64(), pa.float64(), pa.float64()], pa.float64()),
    "money": (hf.sum("money"), MONEY, pa.decimal128(20, 2)),
    "price": (hf.avg("money"), MONEY, pa.decimal128(14, 6)),
    "distinct": (hf.approx_distinct("pair"), [pa.list_(pa.int16())], pa.int64()),
}

# Values and their hashes, in another order than the values.
HASHES = {None: 42, "": 7, "a": -5, "d": 3, "ab": 2**40, "zz": -(2**63)}

Row = tuple[int | None, float | None, Decimal | None, float | None, str | None, int | None]


def folding(*names: str, ansi: bool = False) -> Folding:
    def bound(name: str) -> BoundAggregate:
        aggregate, types, final = AGGREGATES[name]
        made = accumulator(name, aggregate, types, final, ansi)
        field = t.StructField(name, t.NullType())
        return BoundAggregate((), made, field, aggregate.function, aggregate.expression)

    return Folding(tuple(bound(name) for name in names or AGGREGATES))


ALL = folding()
LIFTED = folding(*(name for name in AGGREGATES if name not in ("first", "last", "distinct")))


def partials_of(row: Row) -> list[object]:
    """What Spark would give for a group of this row alone."""
    whole, double, money, order, label, pair = row
    picked = None if order is None else {"t": order, "tie": HASHES[label], "x": label}
    some = double is not None
    money_and_count = [money, int(money is not None)]
    return [
        int(whole is not None), whole, double, order, order, label, picked, picked,
        double, int(some), int(some), double if some else 0.0, 0.0,
        *money_and_count, *money_and_count, [] if pair is None else [pair],
    ]  # fmt: skip


def arrays(rows: Sequence[Row]) -> Columns:
    columns = [partials_of(row) for row in rows]
    return [pa.array([row[i] for row in columns], kind) for i, kind in enumerate(ALL.partials.types)]


def numbered(sizes: Sequence[int]) -> np.ndarray:
    """Numbers of groups of these sizes, with gaps between the numbers."""
    return np.repeat(np.arange(len(sizes), dtype=np.int64) * 3 + 1, np.asarray(sizes, np.int64))


def one_after_the_other(rows: Sequence[Row]) -> list[object]:
    new = arrays(rows)
    stored = ALL.begin([column.slice(0, 1) for column in new])
    for i in range(1, len(rows)):
        stored = ALL.merge(stored, [column.slice(i, 1) for column in new])
    return [column[0].as_py() for column in stored]


def near(got: object, expected: object, slack: float) -> bool:
    if not isinstance(got, float) or not isinstance(expected, float):
        return got == expected
    return (math.isnan(got) and math.isnan(expected)) or got == expected or abs(got - expected) <= slack


def slack_of(rows: Sequence[Row]) -> float:
    """1e-9 of the size of what was summed, which may be far larger than the sum."""
    return 1e-9 * sum(abs(row[1]) + row[1] ** 2 for row in rows if row[1] is not None)


wholes = st.none() | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)
doubles = st.none() | st.sampled_from([0.0, -0.0, 0.1, 1e6]) | st.floats(-1e6, 1e6)
monies = st.none() | st.decimals(-99_999_999, 99_999_999, places=2)
orders = st.none() | st.sampled_from([NAN, 0.0, -0.0, 1.0, math.inf, -math.inf]) | st.floats(-3, 3, width=16)
labels = st.sampled_from(list(HASHES))
pairs = st.none() | st.builds(
    lambda register, rank: register * 64 + rank, st.integers(0, 511), st.integers(1, 56)
)
groups = st.lists(
    st.lists(st.tuples(wholes, doubles, monies, orders, labels, pairs), min_size=1, max_size=9), max_size=5
)

NOTHING: Row = (None, None, None, None, None, None)


@given(groups)
@example([])
@example([[NOTHING]])
@example([[NOTHING] * 3, [(1, 1.0, Decimal("1.00"), 1.0, "a", 65)], [NOTHING] * 2])
@settings(max_examples=settings().max_examples * 6 // 10)
def test_folding_equals_merging_one_row_after_the_other(rows: list[list[Row]]) -> None:
    together = [row for group in rows for row in group]
    stored = ALL.reduce(numbered([len(group) for group in rows]), ALL.begin(arrays(together)))
    assert [column.type for column in stored] == ALL.stored.types
    assert [len(column) for column in stored] == [len(rows)] * len(stored)
    got = zip(*(column.to_pylist() for column in stored), strict=True)
    for group, values in zip(rows, got, strict=True):
        for name, value, expected in zip(ALL.stored.names, values, one_after_the_other(group), strict=True):
            assert near(value, expected, slack_of(group)), (name, value, expected, group)


INPUT = pa.schema(
    [
        ("whole", pa.int64()),
        ("double", pa.float64()),
        ("money", pa.decimal128(10, 2)),
        ("order", pa.float64()),
        ("label", pa.string()),
    ]
)
KEY = BoundKeys(("label",), (t.StructField("label", t.StringType()),), pa.schema([("k0", pa.string())]))


def table_of(rows: Sequence[Row]) -> pa.Table:
    columns = [[row[i] for row in rows] for i in range(len(INPUT))]
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, INPUT.types, strict=True)], schema=INPUT)


@given(groups)
@example([[NOTHING]])
def test_lifted_rows_are_the_partials_of_single_rows(rows: list[list[Row]]) -> None:
    together = [row for group in rows for row in group]
    lifted = dict(zip(LIFTED.partials.names, LIFTED.lift(table_of(together)), strict=True))
    assert [column.type for column in lifted.values()] == LIFTED.partials.types
    kept = [i for i in range(len(ALL.partials)) if i not in (6, 7, 17)]
    for column, i in zip(lifted.values(), kept, strict=True):
        assert repr(column.to_pylist()) == repr(arrays(together)[i].to_pylist())


def test_a_lifted_variance_breaks_where_sparks_does() -> None:
    one = folding("spread").lift(pa.table({"double": [1.0, math.inf, NAN, None]}))
    assert repr([column.to_pylist() for column in one]) == repr(
        [[1, 1, 1, 0], [1.0, math.inf, NAN, 0.0], [0.0, NAN, NAN, 0.0]]
    )


def test_columns_are_lifted_only_from_types_whose_sums_spark_computes_alike() -> None:
    kinds = dict(zip(INPUT.names, INPUT.types, strict=True))
    assert LIFTED.columns_of(kinds) == [
        "whole", "whole", "double", "order", "order", "label", "double", "double", "money", "money"
    ]  # fmt: skip
    assert LIFTED.columns_of({**kinds, "double": pa.string()}) is None
    assert LIFTED.columns_of({**kinds, "whole": pa.float64()}) is None
    assert folding("first").columns_of(kinds) is None
    assert folding("distinct").columns_of({"pair": pa.int64()}) is None


@given(groups, st.integers(1, 3))
@settings(max_examples=settings().max_examples * 6 // 10)
def test_rows_folded_by_bucket_and_key_are_the_groups_of_plain_python(
    rows: list[list[Row]], buckets: int
) -> None:
    together = [row for group in rows for row in group]
    bucket = np.arange(len(together), dtype=np.int64) % buckets
    h = pa.array([HASHES[row[4]] % 3 for row in together], pa.int64())  # different keys share a hash
    folded = LIFTED.fold(table_of(together).append_column(KEY_HASH, h), bucket, KEY)
    model: dict[tuple[int, str | None], list[Row]] = {}
    for row, b in zip(together, bucket.tolist(), strict=True):
        model.setdefault((b, row[4]), []).append(row)
    places = list(zip(folded["_bucket"].to_pylist(), folded["_h"].to_pylist(), strict=True))
    assert places == sorted(places)
    found = LIFTED.finish([single(folded[name]) for name in LIFTED.partials.names])
    names = [aggregate.field.name for aggregate in LIFTED.aggregates]
    results = zip(*(column.to_pylist() for column in found), strict=True)
    keys = zip(folded["_bucket"].to_pylist(), folded["k0"].to_pylist(), strict=True)
    got = dict(zip(keys, results, strict=True))
    assert got.keys() == model.keys()
    for key, values in got.items():
        expected = in_python(model[key])
        for name, value in zip(names, values, strict=True):
            assert near(value, expected[name], slack_of(model[key])), (key, name)


def wrapped(total: int) -> int:
    return (total + 2**63) % 2**64 - 2**63


def rank(order: float) -> tuple[bool, float]:
    """NaN is the largest number; the zeros are one."""
    return (math.isnan(order), 0.0 if math.isnan(order) else order)


def in_python(rows: Sequence[Row]) -> dict[str, object]:
    """The results, computed from the values; a sum of nothing is null."""
    whole, double, money, order, label, pair = (
        [value for value in column if value is not None] for column in zip(*rows, strict=True)
    )
    picked = [p for row in rows if (p := partials_of(row)[6]) is not None]
    by = [(rank(p["t"]), p["tie"], i) for i, p in enumerate(picked)]  # type: ignore[index]
    codes = np.zeros(REGISTERS, np.int64)
    for code in pair:
        codes[code // 64] = max(codes[code // 64], code % 64)
    mean = sum(money) / len(money) if money else None
    return {
        "n": len(whole),
        "whole": wrapped(sum(whole)) if whole else None,
        "double": math.fsum(double) if double else None,
        "low": min(order, key=rank, default=None),
        "high": max(order, key=rank, default=None),
        "word": max(label, default=None),
        "first": picked[min(by)[2]]["x"] if by else None,  # type: ignore[index]
        "last": picked[max(by)[2]]["x"] if by else None,  # type: ignore[index]
        "mean": math.fsum(double) / len(double) if double else None,
        "spread": variance(double) if len(double) > 1 else None,
        "money": sum(money) if money else None,
        "price": None if mean is None else mean.quantize(Decimal("0.000001"), ROUND_HALF_UP),
        "registers": codes.astype(np.uint8).tobytes(),
    }


@given(groups)
def test_folding_equals_the_values_computed_in_python(rows: list[list[Row]]) -> None:
    together = [row for group in rows for row in group]
    stored = ALL.reduce(numbered([len(group) for group in rows]), ALL.begin(arrays(together)))
    columns = {**dict(zip(AGGREGATES, ALL.finish(stored), strict=True)), "registers": stored[-1]}
    for i, group in enumerate(rows):
        for name, expected in in_python(group).items():
            got = columns[name][i].as_py()
            assert near(got, expected, slack_of(group)), (name, got, expected, group)


class Chain(Accumulator):
    """Strings, joined: which of two came first shows."""

    calls = 0

    def merge(self, old: Columns, new: Columns) -> Columns:
        type(self).calls += 1
        return [pc.binary_join_element_wise(old[0], new[0], "")]


def chain() -> Folding:
    Chain.calls = 0
    made = Chain("chain", False, (pa.string(),), pa.string())
    return Folding((BoundAggregate((), made, t.StructField("chain", t.StringType()), "chain", "x"),))


@given(st.lists(st.lists(st.characters(codec="ascii"), min_size=1, max_size=40), max_size=20), st.randoms())
def test_rows_of_a_group_keep_their_order_and_stay_in_their_group(words: list[list[str]], random) -> None:
    rows = pa.array([letter for word in words for letter in word], pa.string())
    # Only neighbours make a group: the numbers need not ascend.
    numbers = list(range(len(words)))
    random.shuffle(numbers)
    group = np.repeat(np.array(numbers, np.int64), np.array([len(word) for word in words], np.int64))
    (joined,) = chain().reduce(group, [rows])
    assert joined.to_pylist() == ["".join(word) for word in words]


@pytest.mark.parametrize(
    ("largest", "passes"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1_000, 10), (1_025, 11)]
)
def test_the_number_of_passes_is_the_logarithm_of_the_largest_group(largest: int, passes: int) -> None:
    sizes = [1, largest, 1, (largest + 1) // 2]
    (joined,) = chain().reduce(numbered(sizes), [pa.array(["x"] * sum(sizes))])
    assert joined.to_pylist() == ["x" * size for size in sizes]
    assert Chain.calls == passes


@pytest.mark.parametrize("name", AGGREGATES)
def test_no_rows_make_no_groups(name: str) -> None:
    one = folding(name)
    empty = one.begin([pa.array([], kind) for kind in one.partials.types])
    stored = one.reduce(np.zeros(0, np.int64), empty)
    assert [(len(column), column.type) for column in stored] == [(0, kind) for kind in one.stored.types]
    (result,) = one.finish(stored)
    assert len(result) == 0


def test_groups_of_one_row_are_left_as_they_are() -> None:
    stored = ALL.begin(arrays([(i, i / 3, Decimal(i), -i, "d", i * 64 + 1) for i in range(50)]))
    for column, same in zip(ALL.reduce(np.arange(50), stored), stored, strict=True):
        assert column.equals(same)


def test_large_groups_beside_small_ones() -> None:
    rng = np.random.default_rng(3)
    sizes = [1, 20_000, 2, 1, 4_097, 3]
    group, rows = numbered(sizes), sum(sizes)
    whole, double = rng.integers(-(10**12), 10**12, rows), rng.normal(5.0, 2.0, rows)
    order = np.round(rng.normal(0, 1e6, rows))
    label = pa.array(np.arange(rows).astype(str))
    some = folding("n", "whole", "double", "high", "first", "spread")
    ones, zeros = pa.array(np.ones(rows, np.int64)), pa.array(np.zeros(rows))
    picked = pa.StructArray.from_arrays(
        [pa.array(order), pa.array(np.arange(rows)), label], fields=list(PICKED)
    )
    new = [ones, pa.array(whole), pa.array(double), pa.array(order), picked, ones, pa.array(double), zeros]
    stored = some.reduce(group, some.begin(new))
    n, total, inexact, high, first, spread = (column.to_pylist() for column in some.finish(stored))
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    assert n == sizes
    assert total == [int(whole[part].sum()) for part in parts]
    assert inexact == pytest.approx([double[part].sum() for part in parts], rel=1e-9)
    assert high == [order[part].max() for part in parts]
    assert first == [str(part.start + int(np.argmin(order[part]))) for part in parts]
    variances = [double[part].var(ddof=1) if part.stop - part.start > 1 else None for part in parts]
    assert [v is None for v in spread] == [v is None for v in variances]
    assert [v for v in spread if v is not None] == pytest.approx(
        [v for v in variances if v is not None], rel=1e-9
    )


def test_a_large_mean_does_not_drown_the_variance() -> None:
    rng = np.random.default_rng(4)
    values = 1e9 + rng.normal(0, 1, 5_000)
    one = folding("spread")
    new = [pa.array(np.ones(5_000, np.int64)), pa.array(values), pa.array(np.zeros(5_000))]
    (found,) = one.finish(one.reduce(numbered([5_000]), one.begin(new)))
    # Sums of squares would leave no digit of it: they are 1e18 a row, and doubles have 16 digits.
    assert found.to_pylist() == pytest.approx([np.var(values - 1e9, ddof=1)], rel=1e-6)


def test_equal_orders_are_settled_by_the_hash_whatever_the_neighbours() -> None:
    one = folding("first", "last")
    rows = [{"t": at, "tie": tie, "x": f"{at}/{tie}"} for at in (-0.0, 0.0, NAN) for tie in (3, 1, 2)]
    for turn in range(len(rows)):
        turned = pa.array([*rows[turn:], *rows[:turn]], PICKED)
        first, last = one.finish(one.reduce(numbered([len(rows)]), one.begin([turned, turned])))
        assert first.to_pylist()[0] in ("-0.0/1", "0.0/1")
        assert last.to_pylist() == ["nan/3"]


def test_registers_of_a_group_are_the_largest_of_its_rows() -> None:
    one = folding("distinct")
    pairs = pa.array(
        [[64 + 3], [64 + 9, 5 * 64 + 1], [], [64 + 2, 7 * 64 + 56], [64 + 1]], pa.list_(pa.int16())
    )
    (registers,) = one.reduce(numbered([4, 1]), one.begin([pairs]))
    assert registers.type == REGISTERS_TYPE
    first, second = ({i: r for i, r in enumerate(row) if r} for row in registers.to_pylist())
    assert (first, second) == ({1: 9, 5: 1, 7: 56}, {1: 1})


@pytest.mark.parametrize("place", range(4))
def test_an_overflow_is_refused_where_spark_refuses_and_wraps_where_it_wraps(place: int) -> None:
    values = [0] * 4
    values[place] = 2**63 - 1
    values[(place + 1) % 4] = 1
    group = numbered([4])
    lenient, strict = folding("whole"), folding("whole", ansi=True)
    assert lenient.reduce(group, lenient.begin([pa.array(values)]))[0].to_pylist() == [-(2**63)]
    with pytest.raises(InputError, match="aggregate 'whole' overflows int64"):
        strict.reduce(group, strict.begin([pa.array(values)]))


def money(values: Sequence[Decimal | None], counts: Sequence[int]) -> Columns:
    return [pa.array(values, MONEY[0]), pa.array(counts, pa.int64())]


@pytest.mark.parametrize("place", range(7))
def test_a_decimal_sum_that_overflows_is_null_or_refused(place: int) -> None:
    values: list[Decimal | None] = [None] * 8
    values[place], values[place + 1] = Decimal("999999999999999999.99"), Decimal("0.01")
    new = money(values, [int(value is not None) for value in values])
    lenient, strict = folding("money"), folding("money", ansi=True)
    total, count = lenient.reduce(numbered([8]), lenient.begin(new))
    assert (total.to_pylist(), count.to_pylist()) == ([None], [2])
    with pytest.raises(InputError, match="aggregate 'money' overflows"):
        strict.reduce(numbered([8]), strict.begin(new))


@pytest.mark.parametrize("place", range(5))
def test_a_decimal_sum_that_has_overflowed_before_stays_so(place: int) -> None:
    values: list[Decimal | None] = [Decimal("-1.00")] * 5
    values[place] = None
    counts = [2 if value is None else 1 for value in values]
    one = folding("money")
    total, count = one.reduce(numbered([5, 1]), money([*values, Decimal("3.00")], [*counts, 1]))
    assert (total.to_pylist(), count.to_pylist()) == ([None, Decimal("3.00")], [6, 1])
