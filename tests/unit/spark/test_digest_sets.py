"""Sets of digests as columns: what Python's sets would hold, in any order and split, in one canonical form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.spark.operators import digest_sets
from holdfast.spark.operators.accumulators import accumulator

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
