"""Suspicion grows in time in which a worker could have run, and in no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from holdfast.core import limits
from holdfast.protocols import detector
from holdfast.protocols.detector import Accounts, Belief, Evidence, Terms, Thread, Verdict, accounts, judge

LOOK_MS = 50
RAISE_MS = 250
TERMS = Terms()
NOTHING = Accounts(0)

# What the threads of a worker have done up to a moment of its silence.
Course = Callable[[int], Mapping[int, Thread]]


def idle(_: int) -> Mapping[int, Thread]:
    """Stopped, or asleep under a held interpreter lock."""
    return {1: Thread(10**9, 10**9, runnable=False), 2: Thread(0, 0, runnable=False)}


def burning(at_ms: int) -> Mapping[int, Thread]:
    """One thread holds the interpreter lock, and a CPU."""
    return {1: Thread(10**9, 10**9, runnable=False), 2: Thread(at_ms * 10**6, 0, runnable=True)}


def starved(at_ms: int) -> Mapping[int, Thread]:
    """The lease's thread waits for the interpreter lock, whose holder waits for a CPU nine times out of ten."""
    return {
        1: Thread(10**9, 10**9, runnable=False),
        2: Thread(at_ms * 10**5, at_ms * 9 * 10**5, runnable=True),
    }


def waiting(_: int) -> Mapping[int, Thread]:
    """One long wait for a CPU, which the kernel adds when it is over."""
    return {1: Thread(10**9, 10**9, runnable=False), 2: Thread(10**6, 10**6, runnable=True)}


def raised(times: int = 20) -> Belief:
    """A worker that has raised its lease regularly, up to the moment 0."""
    belief: Belief | None = None
    for number in range(times * RAISE_MS // LOOK_MS + 1):
        at_ms = number * LOOK_MS - times * RAISE_MS
        belief, _ = judge(belief, Evidence(1 + number * LOOK_MS // RAISE_MS, idle(0)), at_ms, TERMS)
    assert belief is not None
    return belief


def accused_after_ms(course: Course | None, look_ms: int = LOOK_MS, terms: Terms = TERMS) -> int | None:
    """When a worker that raises its lease no more is accused."""
    belief = raised()
    for at_ms in range(look_ms, 2 * limits.LEASE_WALL_MS_MAX, look_ms):
        threads = course(at_ms) if course and detector.wants_threads(belief, belief.counter, terms) else None
        belief, verdict = judge(belief, Evidence(belief.counter, threads), at_ms, terms)
        if verdict:
            return at_ms
    return None


@pytest.mark.parametrize("course", [idle, burning, None], ids=["stopped", "burning", "unseen"])
def test_a_worker_that_waits_for_no_cpu_is_accused_after_about_a_lease(course: Course | None) -> None:
    found = accused_after_ms(course)
    assert found is not None
    assert limits.LEASE_MS_MAX <= found <= 1_300


@pytest.mark.parametrize("course", [starved, waiting], ids=["often", "long"])
def test_time_spent_waiting_for_a_cpu_does_not_count_until_the_clock_says_so(course: Course) -> None:
    found = accused_after_ms(course)
    assert found is not None
    assert found >= 9_000
    assert found <= limits.LEASE_WALL_MS_MAX + LOOK_MS


def test_what_keeps_the_judge_from_looking_does_not_count() -> None:
    assert (accused_after_ms(idle, look_ms=1_000) or 0) >= 10 * limits.LEASE_MS_MAX
    belief = raised()
    _, verdict = judge(belief, Evidence(belief.counter, idle(0)), 3_600_000, TERMS)
    assert not verdict, "a machine that slept accuses nobody"


def test_a_worker_that_always_takes_long_is_given_longer() -> None:
    belief: Belief | None = None
    for number in range(10):
        for at_ms in range(number * 1_000, (number + 1) * 1_000, LOOK_MS):
            belief, _ = judge(belief, Evidence(number + 1, idle(0)), at_ms, Terms(lease_ms=4_000))
    assert belief is not None
    assert 3_900 <= detector.bound_ms(belief, TERMS) <= 4_300


def test_fail_overs_without_a_commit_double_the_patience() -> None:
    once, twice = (
        accused_after_ms(idle, terms=Terms(setbacks=1)),
        accused_after_ms(idle, terms=Terms(setbacks=2)),
    )
    assert once is not None
    assert twice is not None
    assert 2_000 <= once <= 2_600
    assert 4_000 <= twice <= 5_200


def test_after_a_failed_read_the_wait_starts_anew() -> None:
    belief, seen = raised(), Verdict()
    for at_ms in range(LOOK_MS, 10_000, LOOK_MS):
        counter = None if at_ms % 500 == 0 else belief.counter
        belief, seen = judge(belief, Evidence(counter, idle(0)), at_ms, TERMS)
        assert not seen


def test_a_lease_that_was_never_raised_is_given_longer() -> None:
    belief, accused_ms = None, None
    for at_ms in range(0, 120_000, LOOK_MS):
        belief, verdict = judge(belief, Evidence(None, idle(0)), at_ms, TERMS)
        if verdict and accused_ms is None:
            accused_ms = at_ms
    assert accused_ms == limits.FIRST_LEASE_MS_MAX


def test_the_machines_own_account_excuses_where_threads_are_not_told() -> None:
    belief = raised()
    for at_ms in range(LOOK_MS, 10_000, LOOK_MS):
        belief, verdict = judge(belief, Evidence(belief.counter, None, at_ms * 0.95), at_ms, TERMS)
        assert not verdict


def test_a_verdict_says_how_long_by_the_clock_and_how_long_it_could_have_run() -> None:
    belief, verdict = raised(), Verdict()
    for at_ms in range(LOOK_MS, 30_000, LOOK_MS):
        belief, verdict = judge(belief, Evidence(belief.counter, starved(at_ms)), at_ms, TERMS)
        if verdict:
            break
    assert verdict.why.startswith("its lease has stood still for 1")
    assert verdict.why.endswith(" s of which it could have run")


def test_what_held_up_a_start_makes_nobody_patient_with_a_worker_that_is_ready() -> None:
    belief = raised()
    slow, _ = judge(belief, Evidence(belief.counter + 1, idle(0)), 4_000, TERMS)
    for at_ms in range(4_000 + LOOK_MS, 8_000, LOOK_MS):
        slow, _ = judge(slow, Evidence(slow.counter, idle(0)), at_ms, TERMS)
    slow, _ = judge(slow, Evidence(slow.counter + 1, idle(0)), 8_000, TERMS)
    ready = detector.once_ready(slow)
    assert ready is not None
    assert detector.bound_ms(slow, TERMS) > 10_000
    assert detector.bound_ms(ready, TERMS) == limits.LEASE_MS_MAX


def test_threads_are_read_at_a_raise_and_from_half_a_lease_on() -> None:
    belief, half = raised(), TERMS.lease_ms // 2
    assert detector.wants_threads(None, 1, TERMS)
    assert not detector.wants_threads(belief, belief.counter, TERMS)
    assert detector.wants_threads(belief, belief.counter + 1, TERMS)
    assert not detector.wants_threads(replace(belief, counted_ms=half - 1.0), belief.counter, TERMS)
    assert detector.wants_threads(replace(belief, counted_ms=half - 1.0, open_ms=1.0), belief.counter, TERMS)


def test_bounds_grow_with_setbacks_and_a_first_lease_has_bounds_of_its_own() -> None:
    never, once = Belief(0, 0, NOTHING), Belief(1, 0, NOTHING)
    assert detector.bound_ms(never, Terms(setbacks=1)) == 2 * limits.FIRST_LEASE_MS_MAX
    assert detector.bound_ms(once, Terms(setbacks=1)) == 2 * limits.LEASE_MS_MAX
    assert detector.wall_bound_ms(never, Terms(setbacks=1)) == 2 * limits.FIRST_LEASE_WALL_MS_MAX
    assert detector.wall_bound_ms(once, Terms(setbacks=1)) == 2 * limits.LEASE_WALL_MS_MAX
    assert (
        detector.wall_bound_ms(once, Terms(lease_ms=limits.LEASE_WALL_MS_MAX)) == 4 * limits.LEASE_WALL_MS_MAX
    )


def test_a_verdict_has_its_seconds() -> None:
    for counter, wanted in (
        (0, "it has not begun to raise its lease in 400 s"),
        (1, "its lease has stood still for 400.0 s, in 0.2 s of which it could have run"),
    ):
        belief = Belief(counter, 0, NOTHING, counted_ms=200.0, wall_ms=400_000.0)
        _, verdict = judge(belief, Evidence(counter), 0, TERMS)
        assert verdict.why == wanted
    _, verdict = judge(Belief(1, 0, NOTHING, counted_ms=-5.0, wall_ms=400_000.0), Evidence(1), 0, TERMS)
    assert verdict.why.endswith("in 0.0 s of which it could have run")
    edge = Belief(1, 0, NOTHING, wall_ms=float(limits.LEASE_WALL_MS_MAX))
    assert judge(edge, Evidence(1), 0, TERMS)[1], "the bound itself is too long"
    assert not judge(replace(edge, wall_ms=edge.wall_ms - 1), Evidence(1), 0, TERMS)[1]


def test_a_failed_read_and_a_raise_forget_all_that_was_counted() -> None:
    suspected = Belief(7, 0, NOTHING, counted_ms=300.0, open_ms=40.0, wall_ms=900.0, intervals_ms=(250.0,))
    unread, _ = judge(suspected, Evidence(None), 10, TERMS)
    assert (unread.counter, unread.counted_ms, unread.open_ms, unread.wall_ms) == (7, 0.0, 0.0, 0.0)
    assert unread.intervals_ms == (250.0,)
    back, _ = judge(suspected, Evidence(11), 60, TERMS)
    assert (back.counter, back.counted_ms, back.open_ms, back.wall_ms) == (11, 0.0, 0.0, 0.0)
    assert back.intervals_ms == (250.0, (300.0 + 40.0 + 60.0) / 4), "four raises came in that time"
    first, _ = judge(Belief(0, 0, NOTHING, counted_ms=300.0), Evidence(3), 10, TERMS)
    assert first.intervals_ms == (), "a start is no interval between raises"
    assert judge(None, Evidence(5), 0, TERMS)[0].counter == 5


def test_what_threads_waited_and_ran_is_the_difference_to_the_look_before() -> None:
    first = accounts(None, Evidence(1, {1: Thread(9_000_000, 8_000_000, False)}), 0)
    assert (first.waited_ms, first.ran_ms) == (0.0, 0.0)
    threads = {1: Thread(14_000_000, 11_000_000, False), 2: Thread(1_000_000, 2_000_000, False)}
    second = accounts(first, Evidence(1, threads), 10)
    assert (second.waited_ms, second.ran_ms) == (3.0, 6.0), "the longest wait, and the work of all"
    third = accounts(second, Evidence(1, {1: Thread(14_000_000, 91_000_000, False)}), 20)
    assert third.waited_ms == 10.0, "nobody waits for longer than the time between the looks"


def test_the_machines_wait_is_the_difference_to_the_look_before() -> None:
    first = accounts(None, Evidence(1, None, 500.0), 1_000)
    second = accounts(first, Evidence(1, None, 900.0), 2_000)
    third = accounts(second, Evidence(1, None, 100.0), 3_000)
    fourth = accounts(third, Evidence(1, None, 9_000.0), 4_000)
    assert [one.waited_ms for one in (first, second, third, fourth)] == [0.0, 400.0, 0.0, 1_000.0]
    assert not second.known


def test_one_value_in_a_hundred_may_be_larger() -> None:
    assert [detector.p99(range(number)) for number in (0, 1, 100, 200, 300)] == [0.0, 0, 99, 198, 297]
