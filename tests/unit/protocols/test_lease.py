"""A counter is judged by the judge's own clock, and only while the judge could look."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.protocols.lease import Sighting, look

PAUSE_MS_MAX = 300


def looked(looks: Sequence[tuple[int, int | None]]) -> Sighting:
    """What a judge has seen after these looks: at a time, a counter or a failed read."""
    sighting: Sighting | None = None
    for now_ms, counter in looks:
        sighting = look(sighting, counter, now_ms, PAUSE_MS_MAX)
    assert sighting is not None
    return sighting


def test_a_counter_that_stands_still_is_silent_since_it_was_first_seen() -> None:
    assert looked([(0, 7), (100, 7), (300, 7), (600, 7)]).silent_ms() == 600


def test_a_counter_that_is_raised_is_not_silent() -> None:
    assert looked([(0, 7), (200, 7), (400, 8)]).silent_ms() == 0
    assert looked([(0, 7), (200, 7), (400, 8), (500, 8)]).silent_ms() == 100


def test_a_counter_that_goes_back_is_another_holders_and_not_silent() -> None:
    assert looked([(0, 7), (200, 7), (400, 1)]).silent_ms() == 0


def test_a_first_look_says_nothing() -> None:
    assert looked([(5_000, 7)]).silent_ms() == 0


def test_after_a_failed_read_the_wait_starts_anew() -> None:
    assert looked([(0, 7), (250, 7), (500, None)]).silent_ms() == 0
    assert looked([(0, 7), (250, 7), (500, None), (750, 7)]).silent_ms() == 250


def test_a_counter_that_could_never_be_read_is_not_silent() -> None:
    assert looked([(0, None), (250, None), (500, None)]).silent_ms() == 0


def test_a_raise_during_failed_reads_is_seen_afterwards() -> None:
    assert looked([(0, 7), (250, None), (500, 8)]) == Sighting(8, 500, 500)


def test_after_a_pause_of_the_judge_the_wait_starts_anew() -> None:
    assert looked([(0, 7), (PAUSE_MS_MAX, 7)]).silent_ms() == PAUSE_MS_MAX
    assert looked([(0, 7), (PAUSE_MS_MAX + 1, 7)]).silent_ms() == 0


def test_a_judge_that_always_comes_late_judges_nobody() -> None:
    assert looked([(at_ms, 7) for at_ms in range(0, 10_000, PAUSE_MS_MAX + 1)]).silent_ms() == 0
