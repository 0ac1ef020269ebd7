"""Which rows are near each other, when they expire, and where a partner is looked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.spark.operators.pairing import Interval, distinct, is_left, ranks
from holdfast.state.between import Ranges

SECOND = 1_000_000

intervals = st.tuples(st.integers(-50, 50), st.integers(0, 60)).map(
    lambda pair: Interval(pair[0] * SECOND, (pair[0] + pair[1]) * SECOND)
)
times = st.integers(-100 * SECOND, 100 * SECOND) | st.integers(-100, 100).map(lambda s: s * SECOND)
rows = st.lists(st.tuples(st.integers(0, 5), times), max_size=30).map(sorted)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    h, time = np.array(pairs, np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(h), np.ascontiguousarray(time)


@given(intervals, rows)
def test_pairs_equal_a_nested_loop(interval: Interval, pairs: list[tuple[int, int]]) -> None:
    left, right = interval.pairs(*arrays(pairs))
    expected = [
        (i, j)
        for i, (h, time) in enumerate(pairs)
        for j, (other, at) in enumerate(pairs)
        if h % 2 == 0 and other == h + 1 and interval.low_us <= at - time <= interval.high_us
    ]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == expected


@given(intervals, times, times)
def test_a_kept_partner_is_in_the_range_that_is_searched(interval: Interval, one: int, other: int) -> None:
    """Whichever side comes first, the other finds it where it is kept, and only if it is near enough."""
    left, right = np.array([4]), np.array([5])
    near = interval.low_us <= other - one <= interval.high_us
    for kept, sought, kept_at, at in ((left, right, one, other), (right, left, other, one)):
        found = interval.sought(sought, np.array([at]))
        bucket = interval.bucket(kept, np.array([kept_at]))
        assert found.h == kept
        assert (found.low <= kept_at <= found.high) == near
        if near:
            assert found.first_bucket <= bucket <= found.last_bucket


@given(intervals, rows, st.integers(0, 5), times)
def test_spans_hold_what_is_near_some_row_and_each_of_it_once(
    interval: Interval, pairs: list[tuple[int, int]], h: int, time: int
) -> None:
    """A kept row lies in one span if it lies in what is sought for some row, and in none otherwise."""
    h_of, time_of = arrays(pairs)
    bucket = int(interval.bucket(np.array([h]), np.array([time]))[0])

    def holding(sought: Ranges) -> int:
        near = (sought.h == h) & (sought.low <= time) & (time <= sought.high)
        return int(np.count_nonzero(near & (sought.first_bucket <= bucket) & (bucket <= sought.last_bucket)))

    assert holding(interval.spans(h_of, time_of)) == min(holding(interval.sought(h_of, time_of)), 1)


@given(intervals, times, st.integers(0, 200 * SECOND))
def test_a_row_expires_when_nothing_on_time_can_be_near_it(interval: Interval, time: int, ahead: int) -> None:
    """A watermark that has reached the slice's end leaves no time from it on that is near; one before may."""
    for h in (4, 5):
        bucket = int(interval.bucket(np.array([h]), np.array([time]))[0])
        last = time + (interval.high_us if h == 4 else -interval.low_us)
        assert last < bucket <= last + interval.slice_us
        apart = (bucket + ahead - time) if h == 4 else (time - bucket - ahead)
        assert not interval.low_us <= apart <= interval.high_us


@pytest.mark.parametrize(("low", "high", "slices"), [(-10, 10, 5), (0, 400, 100), (0, 0, 1), (-1, 1, 1)])
def test_slices_are_a_share_of_the_bounds_but_not_tiny(low: int, high: int, slices: int) -> None:
    assert limits.JOIN_SLICES == 4
    assert Interval(low * SECOND, high * SECOND).slice_us == slices * SECOND


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20).map(sorted))
def test_ranks_count_the_rows_of_a_hash_and_time(pairs: list[tuple[int, int]]) -> None:
    assert ranks(*arrays(pairs)).tolist() == [pairs[:i].count(pair) for i, pair in enumerate(pairs)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_distinct_takes_one_row_of_each_kind(pairs: list[tuple[int, int]]) -> None:
    assert [pairs[i] for i in distinct(*arrays(pairs)).tolist()] == sorted(set(pairs))


def test_the_lowest_bit_is_the_side() -> None:
    assert is_left(np.array([4, 5, -2, -1])).tolist() == [True, False, True, False]
