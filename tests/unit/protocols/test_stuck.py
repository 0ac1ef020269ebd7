"""A worker is stuck whose plan stands still while nobody works on it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import limits
from holdfast.protocols import stuck
from holdfast.protocols.detector import Evidence, Terms, Thread
from holdfast.protocols.stuck import OpenPlan, Standstill

PLAN = OpenPlan("totals", 0, 7, 3)


def stuck_after_s(
    ran: float, waited: float, epochs_ms: Sequence[float] = (), setbacks: int = 0, until_s: int = 8_000
) -> int | None:
    """When a worker is stuck whose JVM runs and waits for so much of the time."""
    still: Standstill | None = None
    for at_ms in range(0, until_s * 1_000, 1_000):
        still = stuck.look(still, PLAN, at_ms)
        if stuck.wants_threads(still, at_ms):
            thread = Thread(int(at_ms * ran * 10**6), int(at_ms * waited * 10**6), runnable=False)
            still = stuck.weigh(still, Evidence(None, {9: thread}), at_ms)
        if stuck.is_near(still) and stuck.verdict(still, epochs_ms, Terms(setbacks=setbacks)):
            return at_ms // 1_000
    return None


def test_a_plan_that_nobody_works_on_is_stuck_after_a_minute() -> None:
    assert 60 <= (stuck_after_s(ran=0.02, waited=0.0) or 0) <= 75


def test_a_long_epoch_that_burns_cpu_is_no_standstill() -> None:
    assert stuck_after_s(ran=0.8, waited=0.0, until_s=3_000) is None
    assert (stuck_after_s(ran=0.8, waited=0.0) or 0) >= 3_600


def test_time_in_which_its_jvm_waits_for_a_cpu_does_not_count() -> None:
    assert (stuck_after_s(ran=0.01, waited=0.9) or 0) >= 600


def test_a_stage_whose_epochs_take_long_is_given_longer() -> None:
    assert (stuck_after_s(ran=0.0, waited=0.0, epochs_ms=[50_000.0] * 50) or 0) >= 200


def test_fail_overs_without_a_commit_double_it() -> None:
    assert 120 <= (stuck_after_s(ran=0.0, waited=0.0, setbacks=1) or 0) <= 135


def test_another_plan_or_another_version_of_it_is_a_move() -> None:
    still = Standstill(PLAN, 0, idle_ms=59_000.0)
    assert stuck.look(still, PLAN, 90_000) is still
    for moved in (OpenPlan("totals", 0, 8, 3), OpenPlan("totals", 0, 7, 4), OpenPlan("totals", 1, 7, 3)):
        assert stuck.look(still, moved, 90_000).idle_ms == 0.0


def test_a_supervisor_that_did_not_look_for_an_hour_counts_two_looks() -> None:
    still = stuck.weigh(Standstill(PLAN, 0), Evidence(None, {9: Thread(1, 0, runnable=False)}), 10_000)
    later = stuck.weigh(still, Evidence(None, {9: Thread(1, 0, runnable=False)}), 3_600_000)
    assert later.idle_ms == 2 * limits.STUCK_LOOK_MS


def test_processes_are_looked_at_after_a_while_and_then_every_second() -> None:
    still = Standstill(PLAN, 1_000)
    assert not stuck.wants_threads(still, 999 + limits.STUCK_LOOK_AFTER_MS)
    assert stuck.wants_threads(still, 1_000 + limits.STUCK_LOOK_AFTER_MS)
    looked = stuck.weigh(still, Evidence(None, {9: Thread(1, 0, runnable=False)}), 20_000)
    assert not stuck.wants_threads(looked, 19_999 + limits.STUCK_LOOK_MS)
    assert stuck.wants_threads(looked, 20_000 + limits.STUCK_LOOK_MS)


def test_a_fifth_of_a_cpu_is_work() -> None:
    first = stuck.weigh(Standstill(PLAN, 0), Evidence(None, {9: Thread(0, 0, runnable=False)}), 1_000)
    for ran_ms, idle_ms, busy_ms in ((199, 1_000.0, 0.0), (200, 0.0, 1_000.0)):
        thread = Thread(ran_ms * 10**6, 0, runnable=False)
        later = stuck.weigh(first, Evidence(None, {9: thread}), 2_000)
        assert (later.idle_ms, later.busy_ms) == (idle_ms, busy_ms)
        assert later.accounts is not None


def test_a_verdict_names_the_plan_and_its_seconds() -> None:
    idle = Standstill(PLAN, 0, idle_ms=float(limits.STUCK_MS_MIN))
    assert stuck.is_near(idle)
    assert not stuck.is_near(Standstill(PLAN, 0, idle_ms=limits.STUCK_MS_MIN - 1.0))
    assert stuck.verdict(idle, [], Terms()).why == (
        "it is stuck: epoch 7 of totals has not moved, in 60 s in which nobody worked on it"
    )
    assert not stuck.verdict(idle, [], Terms(setbacks=1))
    busy = Standstill(PLAN, 0, busy_ms=2.0 * limits.STUCK_BUSY_MS_MIN)
    assert stuck.is_near(Standstill(PLAN, 0, busy_ms=float(limits.STUCK_BUSY_MS_MIN)))
    assert stuck.verdict(busy, [], Terms(setbacks=1)).why == (
        "it is stuck: epoch 7 of totals has not moved in 7200 s of work"
    )
    assert not stuck.verdict(busy, [], Terms(setbacks=2))
