"""What benchmarks with several sides share: the rounds in which sides take turns, and the frame around them.

All sides run in one session on the same files, in rounds whose order turns: each side comes first, second
and last in turn. A side starts every round with an empty state; epochs that fill it are run and not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import peers_spark
from holdfast.bench.data import DataSet
from holdfast.bench.report import Line, Report, spread

# Feeds the files of a data set one an epoch, from an empty state, and returns the seconds of each.
Side = Callable[[SparkSession, DataSet], list[float]]

# By side and round, the seconds of every counted epoch.
Rounds = Mapping[str, list[list[float]]]


@dataclass(frozen=True)
class Size:
    """How much of one measurement to run. `sides` are those that take part in it."""

    label: str
    rows: int
    warmup: int
    epochs: int
    rounds: int
    sides: tuple[str, ...]


@contextmanager
def measuring(
    report: Report, spark: SparkSession | None, json_path: Path | None, conf: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """Give a session to measure in; then show what the report holds and, if told where, write it."""
    session = spark or peers_spark.session(conf)
    try:
        yield session
    finally:
        if spark is None:
            session.stop()
    report.show()
    if json_path:
        report.write(json_path)


def measure(spark: SparkSession, size: Size, made: DataSet, sides: Mapping[str, Side]) -> Rounds:
    """Let the sides that are both wanted and part of the size take their turns on a data set."""
    taking_part = [name for name in size.sides if name in sides]
    rounds: dict[str, list[list[float]]] = {name: [] for name in taking_part}
    console = Console(stderr=True)
    for number in range(size.rounds):
        for name in turned(taking_part, number):
            seconds = sides[name](spark, made)
            if len(seconds) != len(made.files):
                raise RuntimeError(f"{name} returned {len(seconds)} epochs for {len(made.files)} files")
            counted = seconds[made.uncounted :]
            rounds[name].append(counted)
            console.print(
                f"{size.label} round {number + 1} {name}: {statistics.median(counted):.3f} s an epoch"
            )
    return rounds


def turned(names: Sequence[str], by: int) -> list[str]:
    """The names in an order that starts one further on every round.

    >>> turned(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    at = by % len(names) if names else 0
    return [*names[at:], *names[:at]]


def add_rounds(report: Report, size: Size, rounds: Rounds) -> None:
    """Put a line for every side, and all its samples, into the report."""
    for name, samples in rounds.items():
        flat = [second for one_round in samples for second in one_round]
        report.lines.append(Line(size.label, name, spread(flat), size.rows))
        report.runs += [
            {"size": size.label, "rows": size.rows, "side": name, "round": number, "seconds": one_round}
            for number, one_round in enumerate(samples)
        ]
