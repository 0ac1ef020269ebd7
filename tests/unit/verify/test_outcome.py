"""What follows from the runs of a campaign."""

from __future__ import annotations

import pytest

from campaigns import POINTS, campaign, outcome, verdict
from holdfast.verify.classes import Recovery
from holdfast.verify.outcome import Campaign, RunOutcome

WRONG = outcome(Recovery.DIVERGENT)
MISSED = outcome(None, point="sweep.mid", reached=False)


def test_a_point_that_was_not_reached_has_neither_passed_nor_failed() -> None:
    assert not MISSED.as_predicted
    assert not MISSED.is_violation
    assert campaign(outcome(), MISSED).violations == ()


@pytest.mark.parametrize(
    ("run", "holds"),
    [
        (outcome(), True),
        (WRONG, False),
        (outcome(Recovery.PRECISE, predicted=Recovery.REPEATING), True),
        (outcome(Recovery.REPEATING, predicted=Recovery.GAP), False),
        (outcome(Recovery.UNKNOWN, predicted=Recovery.DIVERGENT), False),
        (outcome(None), False),
        (outcome(error="the flow never came back"), False),
        (outcome(verdicts=(verdict(["a"]), verdict([]))), False),
    ],
)
def test_a_run_is_as_predicted_if_no_sink_shows_more_than_that(run: RunOutcome, holds: bool) -> None:
    assert run.as_predicted is holds
    assert run.is_violation is not holds


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (campaign(outcome(), MISSED), 0),
        (campaign(outcome(), WRONG, MISSED), 1),
        (campaign(outcome(), outcome(None, error="it hangs")), 1),
        (campaign(MISSED), 2),
        (campaign(), 2),
        (campaign(outcome(), deterministic=False), 2),
        (campaign(WRONG, deterministic=False), 2),
    ],
)
def test_exit_status(found: Campaign, status: int) -> None:
    assert found.exit_status == status


def test_unreached_are_the_points_that_no_run_reached_tried_or_not() -> None:
    assert campaign(outcome(), MISSED).unreached == POINTS[1:]
    assert campaign(outcome(point="sweep.mid"), MISSED).unreached == POINTS[:2]


def test_the_table_counts_classes_a_policy() -> None:
    runs = (
        outcome(),
        outcome(),
        WRONG,
        outcome(None),
        MISSED,
        outcome(Recovery.GAP, predicted=Recovery.GAP, policy="gap()"),
    )
    passive, gap = campaign(*runs).table()
    assert passive.counts[Recovery.PRECISE] == 2
    assert passive.counts[Recovery.DIVERGENT] == 1
    assert (passive.no_verdict, passive.not_reached, passive.violations) == (1, 1, 2)
    assert (gap.policy, gap.counts[Recovery.GAP], gap.violations) == ("gap()", 1, 0)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            campaign(outcome(), outcome(policy="gap()"), MISSED),
            "orders: no violation at 1 point in 2 runs; 2 points not reached",
        ),
        (
            campaign(*(outcome(point=point) for point in POINTS), outcome(fault="disk full", point=None)),
            "orders: no violation at 3 points and under 1 fault elsewhere in 4 runs",
        ),
        (
            campaign(*(outcome(point=point) for point in POINTS), WRONG),
            "orders: 1 violation at 3 points in 4 runs",
        ),
        (campaign(MISSED), "orders: no fault struck, so nothing was verified"),
        (
            campaign(outcome(), deterministic=False),
            "orders is not deterministic: runs without failures differ, so nothing can be compared",
        ),
    ],
)
def test_the_summary_says_what_was_found_and_never_that_it_is_proven(found: Campaign, sentence: str) -> None:
    assert found.summary() == sentence
    assert "prove" not in sentence
