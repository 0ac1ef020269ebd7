"""Where a region is cut: parts, markers, ceilings, and what makes a cut consistent."""

from __future__ import annotations

import pytest

from holdfast.protocols.snapshots import (
    Move,
    Pace,
    Part,
    Standing,
    bounds,
    ceilings,
    channel_state,
    failed_in_a_row,
    flaws,
    is_due,
    kept,
    next_move,
    part_of,
)

A, B = "channel:a.out", "channel:b.out"
REGION = {"a": {"source:x": None}, "b": {"source:x": None}, "both": {A: "a", B: "b"}}
CYCLE = {"a": {"source:x": None, B: "b"}, "b": {A: "a"}}
PACE = Pace(every_us=100, min_pause_us=10, max_concurrent=2, timeout_us=50, tolerate=0)

A_PART, B_PART = Part(4, {"source:x": 9}), Part(1, {"source:x": 3})


def standing(a: int, b: int, planned: bool = False) -> Standing:
    return Standing(7, {A: a, B: b}, planned)


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at_least_once", "freeze"])
def test_a_stage_that_reads_only_from_outside_takes_its_part_at_once(mode: str) -> None:
    here = Standing(4, {"source:x": 9}, is_planned=False)
    assert part_of(mode, REGION, "a", here, {}) == A_PART


def test_aligned_waits_until_it_has_read_up_to_every_marker_and_not_beyond() -> None:
    assert part_of("aligned", REGION, "both", standing(5, 2), {"a": A_PART}) is None
    parts = {"a": A_PART, "b": B_PART}
    assert part_of("aligned", REGION, "both", standing(4, 2), parts) is None
    assert part_of("aligned", REGION, "both", standing(6, 2), parts) is None
    assert part_of("aligned", REGION, "both", standing(5, 2), parts) == Part(7, {A: 5, B: 2})


def test_unaligned_takes_its_part_at_the_first_marker_and_keeps_what_is_unread_as_channel_state() -> None:
    assert part_of("unaligned", REGION, "both", standing(3, 2), {}) is None
    part = part_of("unaligned", REGION, "both", standing(3, 2), {"a": A_PART})
    assert part == Part(7, {A: 3, B: 2})
    assert channel_state(REGION, {"a": A_PART, "b": B_PART, "both": part}) == {("both", A): (3, 5)}


def test_unaligned_begins_in_a_cycle_where_it_is_read_into() -> None:
    here = Standing(2, {"source:x": 1, B: 0}, is_planned=True)
    assert part_of("unaligned", CYCLE, "a", here, {}) == Part(2, {"source:x": 1, B: 0})
    assert part_of("unaligned", CYCLE, "b", Standing(0, {A: 1}, False), {}) is None


def test_at_least_once_reads_on_from_the_markers_it_has_passed() -> None:
    parts = {"a": A_PART, "b": B_PART}
    assert part_of("at_least_once", REGION, "both", standing(4, 3), parts) is None
    assert part_of("at_least_once", REGION, "both", standing(6, 3), parts) == Part(7, {A: 5, B: 2})


def test_freeze_waits_for_an_epoch_that_is_planned() -> None:
    assert part_of("freeze", REGION, "both", standing(3, 2, planned=True), {}) is None
    assert part_of("freeze", REGION, "both", standing(3, 2), {}) == Part(7, {A: 3, B: 2})


def test_a_stage_without_its_part_plans_up_to_the_markers_that_are_there() -> None:
    assert ceilings("aligned", REGION, "both", {"a": A_PART}) == {A: 5}
    assert ceilings("unaligned", REGION, "both", {"a": A_PART}) == {A: 5}
    assert ceilings("at_least_once", REGION, "both", {"a": A_PART}) == {}
    assert ceilings("freeze", REGION, "both", {"a": A_PART}) is None


def test_a_stage_heeds_the_markers_of_every_snapshot_that_it_lacks_in() -> None:
    later = {"a": Part(6, {}), "b": Part(3, {})}
    assert bounds(REGION, "both", []) == {}
    assert bounds(REGION, "both", [("aligned", {"a": A_PART}), ("aligned", later)]) == {A: 5, B: 4}
    assert bounds(REGION, "both", [("at_least_once", {"a": A_PART}), ("unaligned", later)]) == {A: 7, B: 4}
    assert bounds(REGION, "both", [("aligned", {"a": A_PART}), ("at_least_once", later)]) == {A: 5}
    assert bounds(REGION, "both", [("freeze", {}), ("aligned", later)]) is None


def test_one_that_freezes_next_does_not_keep_a_stage_from_the_markers_of_the_one_before() -> None:
    frozen = {"a": Part(6, {})}
    assert bounds(REGION, "both", [("aligned", {"a": A_PART}), ("freeze", frozen)]) == {A: 5}


def test_what_was_received_and_never_sent_is_a_flaw_and_so_is_a_missing_part() -> None:
    parts = {"a": A_PART, "both": Part(7, {A: 6, B: 2})}
    assert flaws(REGION, parts) == [
        "b has no part",
        "both has read channel:a.out up to 6, of which only 5 was sent",
    ]
    assert flaws(REGION, {"a": A_PART, "b": B_PART, "both": Part(7, {A: 5, B: 0})}) == []


def test_a_snapshot_is_committed_when_all_parts_are_there_and_their_files_are_safe() -> None:
    parts = {"a": A_PART, "b": B_PART, "both": Part(7, {A: 5, B: 2})}
    safe = {"a": 4, "b": 1, "both": 7}
    assert next_move(REGION, parts, safe, 0, 1_000, PACE) is Move.COMMIT
    assert next_move(REGION, parts, {**safe, "both": 6}, 0, 50, PACE) is Move.WAIT
    assert next_move(REGION, parts, {**safe, "both": 6}, 0, 51, PACE) is Move.ABORT
    assert next_move(REGION, {"a": A_PART}, safe, 0, 50, PACE) is Move.WAIT


def test_the_next_is_due_by_the_clock_or_at_rest_but_never_too_many_or_too_soon() -> None:
    assert is_due(PACE, 200, begun_us=100, ended_us=150, under_way=1, at_rest=False)
    assert not is_due(PACE, 199, begun_us=100, ended_us=150, under_way=1, at_rest=False)
    assert is_due(PACE, 160, begun_us=100, ended_us=150, under_way=1, at_rest=True)
    assert not is_due(PACE, 159, begun_us=100, ended_us=150, under_way=1, at_rest=True)
    assert not is_due(PACE, 500, begun_us=100, ended_us=150, under_way=2, at_rest=True)


def test_failures_are_counted_since_the_last_success_if_the_snapshot_is_to_blame() -> None:
    blamed, not_blamed = ("aborted", True), ("aborted", False)
    assert failed_in_a_row([blamed, not_blamed, blamed]) == 2
    assert failed_in_a_row([blamed, ("committed", False), not_blamed]) == 0
    assert failed_in_a_row([]) == 0


def test_the_newest_complete_one_is_kept_and_all_that_were_asked_for() -> None:
    assert kept([(1, True), (2, False), (5, False)]) == {1, 5}
    assert kept([]) == set()


def test_one_that_freezes_holds_a_stage_that_has_its_part_and_others_do_not() -> None:
    parts = {"a": A_PART, "b": B_PART, "both": Part(7, {A: 5, B: 2})}
    assert bounds(REGION, "both", [("freeze", parts)]) is None
    assert bounds(REGION, "both", [("aligned", parts)]) == {}


def test_at_least_once_takes_its_part_just_at_the_markers_too() -> None:
    parts = {"a": A_PART, "b": B_PART}
    assert part_of("at_least_once", REGION, "both", standing(5, 2), parts) == Part(7, {A: 5, B: 2})


def test_a_snapshot_has_its_time_from_when_it_was_begun() -> None:
    assert next_move(REGION, {}, {}, 100, 150, PACE) is Move.WAIT
    assert next_move(REGION, {}, {}, 100, 151, PACE) is Move.ABORT
