"""Intervals of keys are cut into sessions as one would by hand, going from row to row."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.spark.operators.sessions import _overlapping

Interval = tuple[int, int, int]  # key, start, end

FAR = 2**61

keys = st.integers(0, 4)
near = st.tuples(keys, st.integers(-30, 30), st.integers(1, 12))
anywhere = st.tuples(keys, st.integers(-FAR, FAR), st.integers(1, FAR))
intervals = st.lists(st.one_of(near, anywhere).map(lambda i: (i[0], i[1], i[1] + i[2])), max_size=40).map(
    lambda some: sorted(some, key=lambda i: i[:2])
)


def overlapping(rows: list[Interval]) -> tuple[list[int], list[int]]:
    key, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    session, latest = _overlapping(key, start, end)
    return session.tolist(), latest.tolist()


def by_hand(rows: list[Interval]) -> tuple[list[int], list[int]]:
    """The session of each row, and its latest end so far."""
    sessions: list[int] = []
    latest: list[int] = []
    for i, (key, start, end) in enumerate(rows):
        if i and rows[i - 1][0] == key and start <= latest[-1]:
            sessions.append(sessions[-1])
            latest.append(max(latest[-1], end))
        else:
            sessions.append(sessions[-1] + 1 if i else 0)
            latest.append(end)
    return sessions, latest


@given(intervals)
@example([])
@example([(0, 5, 6)])
# A session that reaches far must not swallow the rows of the next key, nor one inside it end it.
@example([(0, 0, 1_000), (1, 0, 10), (1, 11, 20)])
@example([(0, 0, 100), (0, 10, 20), (0, 50, 60), (0, 99, 101), (0, 102, 103)])
@example([(0, -FAR, FAR), (0, FAR + 1, FAR + 2), (3, -FAR, -FAR + 1), (3, FAR, 2 * FAR)])
# Intervals that touch are one session; a key that begins where another ends is another.
@example([(0, 0, 10), (0, 10, 20), (0, 21, 30), (1, 30, 40)])
def test_sessions_and_their_ends_are_those_found_by_hand(rows: list[Interval]) -> None:
    assert overlapping(rows) == by_hand(rows)


@given(st.lists(near, max_size=40), st.integers(1, 5))
def test_numbers_of_keys_may_have_gaps_and_be_large(rows: list[Interval], step: int) -> None:
    spread = sorted((key * step * 1_000_000, start, start + length) for key, start, length in rows)
    assert overlapping(spread) == by_hand(spread)


@given(intervals, st.randoms(use_true_random=False))
def test_rows_that_begin_together_may_stand_in_any_order(rows: list[Interval], random) -> None:
    def extents(some: list[Interval]) -> dict[int, tuple[int, int, int]]:
        """By session its key, its beginning and its end."""
        found: dict[int, tuple[int, int, int]] = {}
        for (key, start, _), session, end in zip(some, *overlapping(some), strict=True):
            found[session] = (key, found[session][1] if session in found else start, end)
        return found

    shuffled = list(rows)
    random.shuffle(shuffled)
    assert extents(sorted(shuffled, key=lambda i: i[:2])) == extents(rows)


@given(st.lists(st.tuples(keys, st.integers(-60, 60)), min_size=1, max_size=40), st.integers(1, 15))
def test_sessions_of_a_key_end_more_than_a_gap_apart(rows: list[tuple[int, int]], gap: int) -> None:
    ordered = sorted((key, time, time + gap) for key, time in rows)
    sessions, latest = overlapping(ordered)
    ends = {(ordered[i][0], session): latest[i] for i, session in enumerate(sessions)}
    for (key, session), end in ends.items():
        following = ends.get((key, session + 1))
        assert following is None or following - end > gap
    # Rows are in one session exactly if each follows the one before by no more than the gap.
    for i in range(1, len(ordered)):
        joined = ordered[i][0] == ordered[i - 1][0] and ordered[i][1] - ordered[i - 1][1] <= gap
        assert (sessions[i] == sessions[i - 1]) == joined


def test_a_long_chain_is_one_session_and_more_than_a_gap_ends_it() -> None:
    time = np.arange(100_000, dtype=np.int64) * 9
    key = np.zeros(len(time), np.int64)
    session, latest = _overlapping(key, time, time + 9)
    assert not session.any()
    assert (latest == time + 9).all()
    session, latest = _overlapping(key, time, time + 8)
    assert (session == np.arange(len(time))).all()
    assert (latest == time + 8).all()
