"""The watermark follows the slowest input that is not idle, and never goes back.

Checked against the definition, for any clocks in any order. Not checked: who calls an input idle, and
whether the clocks are those of what was committed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocols.watermark import BEGINNING_US, InputClock, Timing, watermark

YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999

times = st.integers(-50, 50) | st.integers(YEAR_1, YEAR_9999)
frontiers = st.none() | times | st.just(BEGINNING_US)
lateness = st.integers(0, 60) | st.integers(0, 10**18)
clocks = st.builds(InputClock, newest_us=st.none() | times, frontier_us=frontiers, idle=st.booleans())
befores = st.none() | times


def reach(clock: InputClock, late_us: int) -> int:
    """How far an input that has had rows lets the watermark go."""
    assert clock.newest_us is not None
    own = clock.newest_us - late_us
    return own if clock.frontier_us is None else min(own, clock.frontier_us)


@given(st.lists(st.lists(clocks, min_size=1, max_size=4), max_size=8), lateness)
def test_it_never_goes_back_and_never_overtakes_an_active_input(
    history: list[list[InputClock]], late_us: int
) -> None:
    at = None
    for inputs in history:
        before, at = at, watermark(at, inputs, late_us)
        if at == before:
            continue
        assert at is not None
        assert before is None or at > before
        for clock in (clock for clock in inputs if not clock.idle):
            assert clock.newest_us is not None
            assert at <= clock.newest_us - late_us
            assert clock.frontier_us is None or at <= clock.frontier_us


@given(befores, st.lists(clocks, min_size=1, max_size=4), lateness)
def test_idle_inputs_never_hold_it_back(before: int | None, inputs: list[InputClock], late_us: int) -> None:
    active = [clock for clock in inputs if not clock.idle]
    if active:
        assert watermark(before, inputs, late_us) == watermark(before, active, late_us)


@given(
    befores,
    st.lists(
        st.builds(InputClock, newest_us=times, frontier_us=st.none() | times, idle=st.booleans()),
        min_size=1,
        max_size=4,
    ),
    lateness,
)
def test_it_goes_as_far_as_the_slowest_active_input_or_the_fastest_of_idle_ones(
    before: int | None, inputs: list[InputClock], late_us: int
) -> None:
    active = [reach(clock, late_us) for clock in inputs if not clock.idle]
    goal = min(active) if active else max(reach(clock, late_us) for clock in inputs)
    assert watermark(before, inputs, late_us) == (goal if before is None else max(before, goal))


@given(befores, st.lists(clocks, min_size=1, max_size=4), lateness, st.integers(0, 100), st.data())
def test_newer_rows_and_more_patience_move_it_one_way_each(
    before: int | None, inputs: list[InputClock], late_us: int, more: int, data: st.DataObject
) -> None:
    at = watermark(before, inputs, late_us)
    which = data.draw(st.integers(0, len(inputs) - 1))
    newest = inputs[which].newest_us
    ahead = list(inputs)
    ahead[which] = replace(inputs[which], newest_us=0 if newest is None else newest + more)
    later = watermark(before, ahead, late_us)
    assert at is None or (later is not None and later >= at)
    patient = watermark(before, inputs, late_us + more)
    assert patient is None or (at is not None and patient <= at)


@pytest.mark.parametrize("before", [None, 5])
def test_an_active_input_without_rows_stops_it_and_an_idle_one_does_not(before: int | None) -> None:
    ahead, silent = InputClock(100, None), InputClock(None, None)
    assert watermark(before, [ahead, silent], 10) == before
    assert watermark(before, [ahead, replace(silent, idle=True)], 10) == 90
    assert watermark(before, [silent], 10) == before
    assert watermark(before, [replace(silent, idle=True)], 10) == before


@pytest.mark.parametrize("before", [None, 5])
def test_a_producer_that_may_still_send_anything_stops_it(before: int | None) -> None:
    held = InputClock(100, BEGINNING_US)
    assert watermark(before, [held], 10) == before
    assert watermark(before, [held, InputClock(100, None)], 10) == before
    assert watermark(before, [replace(held, idle=True), InputClock(100, None)], 10) == 90


def test_when_all_are_idle_those_without_rows_do_not_count() -> None:
    idle = [InputClock(100, None, True), InputClock(70, None, True), InputClock(None, None, True)]
    assert watermark(None, idle, 10) == 90
    assert watermark(95, idle, 10) == 95


def test_what_a_producer_holds_back_counts_even_where_its_newest_row_is_far_ahead() -> None:
    assert watermark(None, [InputClock(1_000, 40)], 10) == 40
    assert watermark(None, [InputClock(45, 40)], 10) == 35


def test_before_the_first_row_there_is_no_watermark() -> None:
    assert watermark(None, [], 0) is None
    assert watermark(7, [], 0) == 7


timings = st.builds(
    Timing,
    columns=st.just(("ts",)),
    late_us=st.just(0),
    keeps_us=st.integers(0, 500),
    slice_us=st.integers(1, 100),
)
watermarks = st.integers(-1_000, 1_000)


def slice_end(time: int, slice_us: int) -> int:
    """The first end of a slice, counted from 1970, that is not before a time."""
    return next(end for end in range(time, time + slice_us) if end % slice_us == 0)


@given(timings, watermarks)
def test_the_floor_leaves_exactly_the_buckets_still_needed(timing: Timing, at: int) -> None:
    floor = timing.floor(at)
    assert floor is not None
    for bucket in range(floor - 3, floor + 4):
        assert (bucket < floor) == (bucket + timing.keeps_us <= at)


def test_without_a_watermark_nothing_is_dropped() -> None:
    assert Timing(("ts",), 0, keeps_us=5).floor(None) is None


@given(timings, watermarks)
def test_closing_is_the_slice_of_the_last_thing_that_ends(timing: Timing, at: int) -> None:
    last = timing.closing(at)
    assert last == slice_end(at - timing.keeps_us, timing.slice_us)
    floor = timing.floor(at)
    assert floor is not None
    assert floor - 1 <= last < floor - 1 + timing.slice_us


@pytest.mark.parametrize(("at", "closing"), [(-21, -20), (-20, -20), (-1, 0), (0, 0), (1, 10), (10, 10)])
def test_closing_rounds_up_on_both_sides_of_1970(at: int, closing: int) -> None:
    assert Timing(("ts",), 0, slice_us=10).closing(at) == closing


@given(watermarks, st.integers(0, 500), st.lists(st.tuples(watermarks, watermarks), max_size=5))
def test_the_frontier_is_below_all_that_is_held_or_may_still_begin(
    at: int, holds_us: int, holds: list[tuple[int, int]]
) -> None:
    frontier = Timing(("ts",), 0, holds_us=holds_us).frontier(at, holds)
    bounds = [at - holds_us + 1, *(earliest for _, earliest in holds)]
    assert all(frontier <= bound for bound in bounds)
    assert frontier in bounds


def test_before_a_watermark_the_frontier_is_the_beginning() -> None:
    assert Timing(("ts",), 0, holds_us=5).frontier(None, [(10, 3)]) == BEGINNING_US
