"""Sets of digests as columns: what Python's sets would hold, in any order and split, in one canonical form."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

import holdfast as hf
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import HASH as KEY_HASH
from holdfast.spark.keys import BoundKeys
from holdfast.spark.operators import digest_sets
from holdfast.spark.operators.accumulators import accumulator
from holdfast.spark.operators.folding import BoundAggregate, Folding
from holdfast.state.schema import single

PAIRS = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]))
_word = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]) | st.integers(-3, 3)
_lists = st.lists(st.lists(st.tuples(_word, _word), max_size=6), min_size=1, max_size=6)


def as_sets(lists: list[list[tuple[int, int]]]) -> pa.Array:
    unique = [list(dict.fromkeys(one)) for one in lists]
    return digest_sets.collected(pa.array([[{"a": a, "b": b} for a, b in one] for one in unique], PAIRS))


def members(sets: pa.Array) -> list[list[tuple[int, int]]]:
    return [
        [tuple(pair) for pair in np.frombuffer(one or b"", np.int64).reshape(-1, 2).tolist()]
        for one in sets.to_pylist()
    ]


@given(left=_lists, right=_lists, hidden=st.integers(0, 3))
def test_a_union_holds_what_either_holds_once_and_in_order(left, right, hidden) -> None:
    rows = min(len(left), len(right))
    # A slice of a longer column, as a filter leaves it.
    ours = pa.concat_arrays([as_sets([[(9, 9)]] * hidden), as_sets(left[:rows])]).slice(hidden)
    both = digest_sets.union(ours, as_sets(right[:rows]))
    expected = [sorted({*one, *other}) for one, other in zip(left[:rows], right[:rows], strict=True)]
    assert members(both) == expected
    assert digest_sets.sizes(both).to_pylist() == [len(one) for one in expected]


def test_a_null_is_an_empty_set_and_no_rows_are_no_sets() -> None:
    nothing = pa.nulls(2, digest_sets.SET_TYPE)
    some = as_sets([[(1, 2)], []])
    assert members(digest_sets.union(nothing, some)) == [[(1, 2)], []]
    assert members(digest_sets.union(some, nothing)) == [[(1, 2)], []]
    assert digest_sets.sizes(nothing).to_pylist() == [0, 0]
    empty = nothing.slice(0, 0)
    assert len(digest_sets.union(empty, empty)) == 0


def test_more_values_than_the_bound_are_refused_and_the_error_names_the_other_way() -> None:
    made = accumulator("users", hf.count_distinct("u", max=3), [PAIRS], pa.int64(), True)
    held = made.merge(
        [pa.nulls(1, digest_sets.SET_TYPE)], [pa.array([[{"a": i, "b": i} for i in range(3)]], PAIRS)]
    )
    assert made.merge(held, [pa.array([[{"a": 1, "b": 1}]], PAIRS)])[0].equals(held[0])
    with pytest.raises(
        hf.InputError, match="aggregate 'users' counts more than 3 different values"
    ) as caught:
        made.merge(held, [pa.array([[{"a": 7, "b": 7}]], PAIRS)])
    assert "approx_distinct" in str(caught.value)


_values = st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, math.inf]) | st.floats()


@given(epochs=st.lists(st.lists(st.tuples(st.integers(0, 2), _values), min_size=1, max_size=12), max_size=4))
def test_rows_of_several_epochs_are_counted_once_by_value_either_way(epochs) -> None:
    made = accumulator("d", hf.count_distinct("x"), [PAIRS], pa.int64(), True)
    one = Folding((BoundAggregate((), made, t.StructField("d", t.LongType()), "count_distinct", "x"),))
    key = BoundKeys.of("s", t.StructType([t.StructField("k", t.LongType())]), ["k"])
    assert one.columns_of({"x": pa.float64()}) == ["x"]
    found: dict[int, pa.Array] = {}
    for number, rows in enumerate(epochs):
        k, x = pa.array([k for k, _ in rows], pa.int64()), pa.array([x for _, x in rows], pa.float64())
        table = pa.table({"k": k, "x": x, KEY_HASH: pa.array(hash_columns([k]))})
        folded = one.fold(table, np.zeros(len(rows), np.int64), key)
        for at, group in enumerate(folded["k0"].to_pylist()):
            new = single(folded["p0"]).slice(at, 1)
            if number % 2:  # as Spark would have collected them
                pairs = [[{"a": a, "b": b} for a, b in reversed(members(new)[0])]]
                new = pa.array(pairs, PAIRS)
            (found[group],) = one.merge([found.get(group, pa.nulls(1, digest_sets.SET_TYPE))], [new])
    model: dict[int, set[object]] = {}
    for k, x in (row for rows in epochs for row in rows):
        value = "NaN" if x is not None and math.isnan(x) else x
        model.setdefault(k, set()).update([value] if value is not None else [])
    counts = {group: one.finish([sets])[0].to_pylist()[0] for group, sets in found.items()}
    assert counts == {group: len(values) for group, values in model.items()}
