"""What a supervisor does next: who is gone is replaced, who is missing is started, nothing else happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.protocols.supervision import (
    ACTIVE,
    FAILED,
    FINISHED,
    READY,
    STARTING,
    STOPPED,
    Admit,
    Expel,
    Forget,
    Group,
    Promote,
    Seen,
    Start,
    decide,
    successor,
    why_gone,
)

SILENT = "its lease has stood still"


def group(
    primary: str | None = None, *members: str, wanted: int = 2, hot: bool = False, may_start: bool = True
) -> Group:
    return Group("g", primary, tuple(filter(None, (primary, *members))), wanted, hot=hot, may_start=may_start)


def seen(
    worker: str, status: str = READY, *, lives: bool = True, silent: bool = False, rehearsals: int = 0
) -> Seen:
    return Seen(worker, status, lives, SILENT if silent else "", rehearsals)


def active(worker: str, *, lives: bool = True, silent: bool = False) -> Seen:
    return seen(worker, ACTIVE, lives=lives, silent=silent)


GONE = [
    pytest.param(active("a", lives=False), "its process has ended", id="ended"),
    pytest.param(active("a", silent=True), SILENT, id="silent"),
    pytest.param(seen("a", FAILED), "it failed", id="failed"),
]


def test_a_group_that_is_whole_is_left_alone() -> None:
    assert decide(group("a"), [active("a"), seen("b")]) == []


def test_a_new_group_starts_one_worker_and_makes_it_the_primary() -> None:
    assert decide(group(), []) == [Start("g", "0 of 2 workers are there")]
    assert decide(group(), [seen("a", STARTING)]) == [Promote("g", "a", ("a",), "a starts the group")]


def test_missing_standbys_are_started_one_at_a_time() -> None:
    assert decide(group("a", wanted=3), [active("a")]) == [
        Start("g", "1 of 3 workers are there", in_background=True)
    ]


def test_nothing_is_started_too_soon_after_a_start_that_failed() -> None:
    assert decide(group(may_start=False), []) == []
    assert decide(group("a", may_start=False), [active("a")]) == []
    assert decide(group("a", may_start=False), [active("a", lives=False)]) == []


@pytest.mark.parametrize(("primary", "why"), GONE)
def test_a_standby_takes_the_place_of_a_primary_that_is_gone(primary: Seen, why: str) -> None:
    deposed = "a" if primary.accused else None
    assert decide(group("a"), [primary, seen("b")]) == [
        Promote("g", "b", ("b",), f"b goes on; a is gone: {why}", deposed)
    ]


@pytest.mark.parametrize(("primary", "why"), GONE)
def test_without_a_standby_another_worker_is_started(primary: Seen, why: str) -> None:
    background = bool(primary.accused)
    assert decide(group("a"), [primary]) == [Start("g", f"a is gone: {why}", in_background=background)]


def test_nobody_alive_is_deposed_for_an_heir_that_is_still_starting() -> None:
    starting = seen("b", STARTING)
    assert decide(group("a"), [active("a", silent=True), starting]) == []
    assert decide(group("a"), [active("a", lives=False), starting]) == [
        Promote("g", "b", ("b",), "b goes on; a is gone: its process has ended")
    ]


def test_who_was_started_for_one_that_came_back_is_struck_off() -> None:
    workers = [active("a"), seen("b", rehearsals=5), seen("c", STARTING)]
    assert decide(group("a"), workers) == [Forget("g", "c", "it is no longer needed")]
    assert decide(group("a", "b", "c", hot=True), workers) == []


def test_a_primary_that_nobody_knows_is_replaced() -> None:
    assert decide(group("a"), [seen("b")]) == [
        Promote("g", "b", ("b",), "b goes on; a is gone: it is unknown")
    ]


def test_only_a_fail_over_comes_before_everything_else() -> None:
    workers = [active("a", lives=False), seen("b", lives=False), seen("c")]
    assert [type(action) for action in decide(group("a", "b", hot=True, wanted=3), workers)] == [Promote]


def test_living_members_keep_their_places_in_a_fail_over() -> None:
    workers = [active("a", silent=True), seen("b"), seen("c"), seen("d"), seen("e", silent=True)]
    [promoted] = decide(group("a", "b", "c", "e", hot=True, wanted=5), workers)
    assert isinstance(promoted, Promote)
    assert (promoted.worker, promoted.members) == ("b", ("b", "c"))


def test_a_hot_standby_is_admitted_when_it_is_ready() -> None:
    hot = group("a", hot=True)
    assert decide(hot, [active("a"), seen("b", STARTING)]) == []
    assert decide(hot, [active("a"), seen("b")]) == [Admit("g", "b")]
    assert decide(group("a", "b", hot=True), [active("a"), seen("b")]) == []
    assert decide(group("a"), [active("a"), seen("b")]) == []


def test_a_member_that_is_gone_is_expelled_before_it_is_forgotten() -> None:
    workers = [active("a"), seen("b", silent=True)]
    assert decide(group("a", "b", hot=True), workers) == [
        Expel("g", "b", "b is gone: its lease has stood still"),
        Start("g", "1 of 2 workers are there", in_background=True),
    ]
    assert decide(group("a", hot=True, may_start=False), workers) == [Forget("g", "b", SILENT)]


def test_a_standby_that_is_gone_is_forgotten_and_another_is_started() -> None:
    assert decide(group("a"), [active("a"), seen("b", lives=False)]) == [
        Forget("g", "b", "its process has ended"),
        Start("g", "1 of 2 workers are there", in_background=True),
    ]


def test_a_group_whose_primary_has_finished_is_done() -> None:
    assert decide(group(), [seen("a", FINISHED, lives=False), seen("b")]) == []
    assert decide(group(), [seen("a", FINISHED), seen("b", lives=False)]) == [
        Forget("g", "b", "its process has ended")
    ]


def test_a_group_whose_primary_was_told_to_stop_goes_on_without_it() -> None:
    leaving = seen("a", STOPPED)
    assert decide(group(), [leaving, seen("b")]) == [Promote("g", "b", ("b",), "b starts the group")]
    assert decide(group(), [leaving]) == [
        Forget("g", "a", "it has stopped"),
        Start("g", "0 of 2 workers are there"),
    ]


def test_the_dead_of_a_group_without_a_primary_are_forgotten() -> None:
    assert decide(group(), [active("a", lives=False)]) == [
        Forget("g", "a", "its process has ended"),
        Start("g", "0 of 2 workers are there"),
    ]


def test_the_successor_is_who_goes_on_fastest() -> None:
    starting, fresh = seen("a", STARTING), seen("b")
    practised, member = seen("c", rehearsals=5), seen("d", STARTING)
    assert successor([], ()) is None
    assert successor([starting], ()) == starting
    assert successor([starting, fresh], ()) == fresh
    assert successor([starting, fresh, practised], ()) == practised
    assert successor([starting, fresh, practised, member], ("d",)) == member


def test_among_equals_the_successor_does_not_depend_on_the_order() -> None:
    assert successor([seen("b"), seen("a")], ()) == successor([seen("a"), seen("b")], ()) == seen("a")


def test_why_a_worker_is_gone_is_what_it_said_itself_if_it_said_anything() -> None:
    assert why_gone(seen("a", FINISHED, lives=False)) == "it has finished"
    assert why_gone(seen("a", FAILED, lives=False, silent=True)) == "it failed"
    assert why_gone(None) == "it is unknown"


def test_a_primary_that_somebody_wants_replaced_hands_over_to_who_is_ready_and_to_nobody_else() -> None:
    asked = replace(group("a"), asked=True)
    assert decide(asked, [active("a"), seen("b", STARTING)]) == []
    assert decide(asked, [active("a"), seen("b")]) == [
        Promote("g", "b", ("b",), "b goes on; somebody asked for it; a is fenced off")
    ]
