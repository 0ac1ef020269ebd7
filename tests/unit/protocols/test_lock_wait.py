"""A process is ended for a lock that it keeps, not for one that it takes often, and not for its judge's own pauses."""

from __future__ import annotations

from holdfast.core import limits
from holdfast.protocols.lock_wait import Holding, look

LOOK, HOLD = limits.LEDGER_LOOK_MS, limits.LEDGER_HOLD_MS_MAX


def seen(*looks: tuple[int | None, int, int]) -> Holding | None:
    found = None
    for holder, version, waited_ms in looks:
        found = look(found, holder, version, waited_ms)
    return found


def is_stuck(*looks: tuple[int | None, int, int]) -> bool:
    found = seen(*looks)
    return found is not None and found.is_stuck()


def test_one_that_stands_still_is_found_out_before_those_who_wait_give_up() -> None:
    needed = HOLD // LOOK + 1
    assert not is_stuck(*[(7, 1, LOOK)] * (needed - 1))
    assert is_stuck(*[(7, 1, LOOK)] * needed)
    assert needed * LOOK + LOOK < limits.LEDGER_BUSY_MS_MAX


def test_a_writer_that_commits_in_between_does_not_stand_still() -> None:
    assert not is_stuck(*[(7, version, LOOK) for version in range(100)])


def test_holders_that_take_turns_and_a_lock_that_is_free_now_and_then_are_no_cause() -> None:
    assert not is_stuck(*[(7 + turn % 2, 1, LOOK) for turn in range(100)])
    assert not is_stuck(*[(None if turn % 5 == 4 else 7, 1, LOOK) for turn in range(104)])
    assert seen((7, 1, LOOK), (None, 1, LOOK)) is None


def test_a_judge_that_stood_still_itself_has_seen_nothing_meanwhile() -> None:
    assert seen((7, 1, LOOK), (7, 1, 3_600_000)) == Holding(7, 1, LOOK)
