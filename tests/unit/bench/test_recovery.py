"""The figures of the recovery benchmark."""

from __future__ import annotations

import pytest

from holdfast.bench import recovery
from holdfast.bench.outage import Outage
from holdfast.bench.policy_job import CASES
from holdfast.bench.recovery import SPARK, Kill, figures_of


def kills(side: str, *first_s: float, clean_s: float | None = None) -> list[Kill]:
    return [
        Kill(side, f"{side}()", number, Outage(0.5, 0.1, 0.2, seconds, seconds + 0.2, None), clean_s)
        for number, seconds in enumerate(first_s)
    ]


def test_figures_are_medians_of_the_kills_with_the_best_and_the_worst() -> None:
    found = {
        "warm": kills("warm", 1.0, 3.0, 1.2),
        SPARK: kills(SPARK, 12.0, 10.0, 12.0),
        "hot": kills("hot", 0.4, 0.8, 0.6),
        "cold": kills("cold", 9.0, 8.0, 10.0, clean_s=8.5),
    }
    figures = {figure.name: figure for figure in figures_of(found)}
    assert set(recovery.BARS) <= set(figures)
    warm = figures["warm_first_epoch_s"]
    assert (warm.value, warm.low, warm.high) == (1.2, 1.0, 3.0)
    assert figures["spark_over_warm"].value == pytest.approx(10.0)
    assert figures["hot_gap_s"].value == pytest.approx(0.8)
    assert figures["hot_gap_epochs"].value == pytest.approx(1.6)
    assert figures["cold_over_clean_s"].value == pytest.approx(0.5)
    assert "warm_caught_up_s" not in figures, "nobody saw it"


def test_a_side_alone_is_compared_with_nothing() -> None:
    names = {figure.name for figure in figures_of({"warm": kills("warm", 1.0)})}
    assert names == {"warm_detection_s", "warm_restore_s", "warm_first_epoch_s"}


def test_every_policy_and_spark_take_part() -> None:
    assert set(recovery.SIDES) == {*CASES, SPARK}
    assert len({case.recovery for case in CASES.values()}) == len(CASES)
