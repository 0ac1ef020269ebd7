"""The arithmetic and the formats of benchmark reports."""

from __future__ import annotations

import io
import json
from statistics import mean

import pytest
from rich.console import Console

from holdfast.bench.report import Bar, Figure, Line, Report, ratio, spread


def test_spread_orders_its_five_numbers() -> None:
    found = spread([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.minimum, found.lower_quartile, found.median, found.upper_quartile, found.maximum) == (
        1,
        2,
        3,
        4,
        5,
    )
    assert found.count == 5


def test_one_sample_is_its_own_spread() -> None:
    found = spread([2.5])
    assert {found.minimum, found.lower_quartile, found.median, found.upper_quartile, found.maximum} == {2.5}


def test_no_samples_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_ratio_is_of_the_medians_and_spreads_over_the_rounds() -> None:
    figure = ratio("vs", over=[[4.0, 4.0], [8.0, 8.0]], under=[[2.0, 2.0], [2.0, 2.0]])
    assert figure == Figure("vs", 3.0, 2.0, 4.0)


def test_a_ratio_of_means_weighs_what_happens_now_and_then() -> None:
    sides = [[2.0, 2.0, 8.0]], [[1.0, 1.0, 1.0]]
    assert ratio("vs", *sides).value == 2.0
    assert ratio("vs", *sides, mean).value == 4.0


def test_ratio_refuses_sides_with_different_rounds() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio("vs", over=[[1.0]], under=[[1.0], [1.0]])


@pytest.mark.parametrize(
    ("bar", "figure", "holds"),
    [
        (Bar("at least", 4.0), 4.0, True),
        (Bar("at least", 4.0), 3.9, False),
        (Bar("at most", 2.0), 2.0, True),
        (Bar("at most", 2.0), 2.1, False),
    ],
)
def test_bars_hold_at_their_value_and_on_the_right_side(bar: Bar, figure: float, holds: bool) -> None:
    assert bar.holds(figure) is holds


@pytest.fixture
def report() -> Report:
    made = Report("state", seed=7, parameters={"keys": 10}, bars={"vs_x": Bar("at least", 4.0)})
    made.figures.append(Figure("vs_x", 5.0, 4.5, 5.5))
    made.lines.append(Line("200k", "holdfast", spread([0.5, 0.5]), 200_000))
    made.runs.append({"side": "holdfast", "seconds": [0.5, 0.5]})
    return made


def test_json_has_flat_figures_and_all_that_they_came_from(report: Report, tmp_path) -> None:
    report.write(tmp_path / "deep" / "report.json")
    found = json.loads((tmp_path / "deep" / "report.json").read_text())
    assert found["figures"] == {"vs_x": 5.0}
    assert found["runs"] == [{"side": "holdfast", "seconds": [0.5, 0.5]}]
    assert found["seed"] == 7
    assert found["parameters"] == {"keys": 10}
    assert found["machine"]["cores"] > 0


def test_tables_show_medians_rates_and_whether_bars_hold(report: Report) -> None:
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    text = out.getvalue()
    assert "400,000" in text
    assert "at least 4" in text
    assert "yes" in text
