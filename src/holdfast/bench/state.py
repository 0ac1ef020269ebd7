"""`holdfast bench state`: a running sum and count over many keys, against Spark's own state stores.

All sides run in one session on the same files, in rounds whose order turns: each side comes first, second
and last in turn. A side starts every round with an empty state; the epochs that fill it with all keys, and
a few after them, are run and not counted. Before the first round every side runs a data set of its own once:
a cold JVM would be slow for whoever comes first. The counted epochs are
the first that all sides run on a full state.

What it does not show: recovery, more than one machine, keys that are not uniform.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import data, peers_spark
from holdfast.bench.holdfast_side import holdfast_side
from holdfast.bench.report import Bar, Figure, Line, Report, ratio, spread

Side = Callable[[SparkSession, Sequence[Path], str], list[float]]

SIDES: Mapping[str, Side] = {
    "holdfast": holdfast_side,
    "spark_rocksdb": peers_spark.spark_rocksdb,
    "spark_default": peers_spark.spark_default,
    "stateless": peers_spark.stateless,
}

BARS = {
    "vs_spark_rocksdb_200k": Bar("at least", 4.0),
    "vs_spark_default_200k": Bar("at least", 2.5),
    "vs_spark_rocksdb_2m": Bar("at least", 4.0),
    "over_stateless_200k": Bar("at most", 2.0),
    "over_stateless_2m": Bar("at most", 1.4),
}


@dataclass(frozen=True)
class Size:
    """How much of one epoch size to run. `sides` are those that run at this size."""

    label: str
    rows: int
    warmup: int
    epochs: int
    rounds: int
    sides: tuple[str, ...] = tuple(SIDES)


SIZES = (
    Size("200k", 200_000, warmup=3, epochs=8, rounds=3),
    # A round of 2M-row epochs takes minutes, and no figure needs the default provider here.
    Size("2m", 2_000_000, warmup=1, epochs=3, rounds=3, sides=("holdfast", "spark_rocksdb", "stateless")),
)
WARM = Size("warm", 200_000, warmup=0, epochs=5, rounds=1)

QUICK_KEYS = 2_000
QUICK_ROWS = 1_000


def run(
    json_path: Path | None = None,
    *,
    rows: Sequence[int] = (200_000, 2_000_000),
    keys: int = 1_000_000,
    seed: int = 1,
    sides: Sequence[str] = tuple(SIDES),
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    sizes = [size for size in SIZES if size.rows in rows]
    if len(sizes) != len(rows):
        raise ValueError(f"epoch sizes are {[size.rows for size in SIZES]}, not {list(rows)}")
    warm = WARM
    if quick:
        sizes = [replace(size, rows=QUICK_ROWS, warmup=0, epochs=2, rounds=1) for size in sizes]
        keys, warm = QUICK_KEYS, replace(WARM, rows=QUICK_ROWS, epochs=1)
    chosen = {name: SIDES[name] for name in sides}
    home = directory or data.default_directory()
    parameters = {
        "keys": keys,
        "sizes": [asdict(size) for size in (warm, *sizes)],
        "sides": list(chosen),
        "session": peers_spark.SESSION_CONF,
        "quick": quick,
    }
    report = Report("state", seed, parameters, bars={} if quick else BARS)
    session = spark or peers_spark.session()
    try:
        measure(session, warm, min(keys, warm.rows), seed, home, chosen)
        for size in sizes:
            rounds = measure(session, size, keys, seed, home, chosen)
            add_to(report, size, rounds)
    finally:
        if spark is None:
            session.stop()
    report.show()
    if json_path:
        report.write(json_path)
    return report


Rounds = Mapping[str, list[list[float]]]


def measure(
    spark: SparkSession, size: Size, keys: int, seed: int, directory: Path, sides: Mapping[str, Side]
) -> Rounds:
    """The seconds of every counted epoch, by side and round."""
    made = data.data_set(
        directory, keys=keys, rows=size.rows, warmup=size.warmup, epochs=size.epochs, seed=seed
    )
    taking_part = [name for name in size.sides if name in sides]
    rounds: dict[str, list[list[float]]] = {name: [] for name in taking_part}
    console = Console(stderr=True)
    for number in range(size.rounds):
        for name in turned(taking_part, number):
            seconds = sides[name](spark, made.files, data.SCHEMA)
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


def add_to(report: Report, size: Size, rounds: Rounds) -> None:
    for name, samples in rounds.items():
        flat = [second for one_round in samples for second in one_round]
        report.lines.append(Line(size.label, name, spread(flat), size.rows))
        report.runs += [
            {"size": size.label, "rows": size.rows, "side": name, "round": number, "seconds": one_round}
            for number, one_round in enumerate(samples)
        ]
    report.figures += figures_of(size.label, rounds)


def figures_of(label: str, rounds: Rounds) -> list[Figure]:
    """The figures of one epoch size, as far as the sides that they compare took part.

    Throughput relative to another system is its time over ours, because both were fed the same rows.
    """
    if "holdfast" not in rounds:
        return []
    ours = rounds["holdfast"]
    found = [
        ratio(f"vs_{peer}_{label}", rounds[peer], ours)
        for peer in ("spark_rocksdb", "spark_default")
        if peer in rounds
    ]
    if "stateless" in rounds:
        found.append(ratio(f"over_stateless_{label}", ours, rounds["stateless"]))
    return found
