"""Orders to crash: several at once, and none before they are to hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.crashpoints import NO_ORDERS, Orders, obey, reach, standing
from holdfast.core.errors import LedgerError


@pytest.fixture(autouse=True)
def no_orders_afterwards() -> Iterator[None]:
    yield
    obey(NO_ORDERS)


def strikes(point: str) -> bool:
    try:
        reach(point)
    except LedgerError:
        return True
    return False


def test_several_crashes_count_for_themselves_and_happen_once() -> None:
    obey(Orders("plan.before:2:raise,commit.before:1:raise"))
    assert [strikes("plan.before") for _ in range(3)] == [False, True, False]
    assert [strikes("commit.before") for _ in range(2)] == [True, False]
    assert not strikes("plan.after")


def test_each_of_several_crashes_has_a_mark_of_its_own(tmp_path: Path) -> None:
    orders = Orders("plan.before:1:raise,commit.before:1:raise", str(tmp_path / "mark"))
    obey(orders)
    assert strikes("commit.before")
    assert [Path(mark).exists() for mark in orders.marks] == [False, True]
    assert strikes("plan.before")
    assert all(Path(mark).exists() for mark in orders.marks)


def test_a_crash_whose_mark_is_there_was_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    obey(Orders("plan.before:1:raise", str(tmp_path / "mark")))
    assert not strikes("plan.before")


def test_what_is_reached_before_the_orders_hold_does_not_count(tmp_path: Path) -> None:
    go = tmp_path / "go"
    obey(Orders("plan.before:2:raise", after=str(go)))
    assert [strikes("plan.before") for _ in range(5)] == [False] * 5
    go.touch()
    assert [strikes("plan.before") for _ in range(3)] == [False, True, False]


def test_orders_without_a_crash_only_watch(tmp_path: Path) -> None:
    obey(Orders(watch=str(tmp_path / "points")))
    assert not strikes("plan.before")
    assert (tmp_path / "points").read_text() == "plan.before\n"
    assert standing().crashes == []


@pytest.mark.parametrize("crash", ["nowhere:1", "plan.before:1:sing", "plan.before:1,nowhere"])
def test_orders_that_cannot_be_carried_out_are_refused(crash: str) -> None:
    with pytest.raises(ValueError, match="HOLDFAST_CRASH"):
        obey(Orders(crash))
    assert standing() == NO_ORDERS
