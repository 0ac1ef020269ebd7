"""Rounds: who comes when, what is counted, and what reaches the report."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

import pytest
from pyspark.sql import SparkSession

from holdfast.bench.data import DataSet
from holdfast.bench.report import Report
from holdfast.bench.rounds import Size, add_rounds, measure, turned

SIZE = Size("small", 100, warmup=1, epochs=2, rounds=2, sides=("a", "b"))
MADE = DataSet((Path("0"), Path("1"), Path("2")), uncounted=1, rows=100)


@pytest.fixture
def session() -> SparkSession:
    return create_autospec(SparkSession)


def test_every_side_comes_first_in_some_round() -> None:
    names = ["a", "b", "c"]
    assert {turned(names, number)[0] for number in range(3)} == set(names)


def test_sides_take_turns_and_only_counted_epochs_are_kept(session: SparkSession) -> None:
    came: list[str] = []

    def side(name: str):
        return lambda spark, made: came.append(name) or [9.0, 1.0, 2.0]

    rounds = measure(session, SIZE, MADE, {name: side(name) for name in "abc"})
    assert came == ["a", "b", "b", "a"]
    assert rounds == {"a": [[1.0, 2.0]] * 2, "b": [[1.0, 2.0]] * 2}


def test_a_side_that_skips_a_file_is_not_compared(session: SparkSession) -> None:
    with pytest.raises(RuntimeError, match="a returned 2 epochs for 3 files"):
        measure(session, SIZE, MADE, {"a": lambda spark, made: [1.0, 1.0]})


def test_the_report_gets_a_line_a_side_and_every_round() -> None:
    report = Report("bench", seed=1, parameters={})
    add_rounds(report, SIZE, {"a": [[1.0, 2.0], [3.0]]})
    assert [(line.side, line.seconds.median) for line in report.lines] == [("a", 2.0)]
    assert [run["seconds"] for run in report.runs] == [[1.0, 2.0], [3.0]]
