"""`holdfast bench windows`: sums and counts in tumbling and in sliding windows, against Spark's own.

Keys are drawn uniformly; event time advances ten seconds a file, and both kinds of windows are fed the same
files. Every side gives each window once, when it is final, and discards it. The first files of a round are not
counted: they open windows until as many close as open. While the counted files are fed, a tumbling window
closes every sixth epoch and a sliding one every epoch.

Epochs without rows: on both sides a watermark that a file has moved ends windows within the epoch of the next
file, and that is counted. Only behind the last file, where no next one comes, is there an epoch that reads nothing
(Spark: a no-data batch, whenever the watermark moved; Holdfast: if it closes a window); neither is counted. Were
Holdfast to run one between two files, commit-to-commit time would charge it to Holdfast; Spark's are never charged.

The figures with a bar compare medians, and the median tumbling epoch closes nothing. So beside each stands the
same comparison of means (`*_mean`), in which epochs that close windows have their weight.

What it does not show: rows that are late, recovery, more than one machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench import peers_spark
from holdfast.bench.data import DataSet, default_directory
from holdfast.bench.event_data import key_set
from holdfast.bench.holdfast_side import holdfast_side
from holdfast.bench.report import Bar, Figure, Report, ratio
from holdfast.bench.rounds import Rounds, Side, Size, add_rounds, measure, measuring
from holdfast.flow.aggregates import count, sum
from holdfast.flow.flow import Stream

WINDOW = "1 minute"
SLIDE = "10 seconds"
LATE = "10 seconds"

# Event time of one file.
SPAN_S = 10
KEYS = 100_000


def tumbling(rows: Stream) -> Stream:
    """Holdfast's tumbling windows."""
    windows = rows.group_by("k").window("ts", tumbling=WINDOW, late=LATE)
    return windows.agg(s=sum("v"), n=count()).named("windows")


def sliding(rows: Stream) -> Stream:
    """Holdfast's sliding windows: every row is in six."""
    windows = rows.group_by("k").window("ts", sliding=(WINDOW, SLIDE), late=LATE)
    return windows.agg(s=sum("v"), n=count()).named("windows")


def spark_windows(rows: DataFrame, slide: str | None) -> DataFrame:
    """The same as a streaming query; without a slide, tumbling."""
    windows = rows.withWatermark("ts", LATE).groupBy(F.window("ts", WINDOW, slide), "k")
    return windows.agg(F.sum("v").alias("s"), F.count(F.lit(1)).alias("n"))


def spark_side(slide: str | None) -> Side:
    """Append mode gives a window once, when it is final."""
    query = partial(spark_windows, slide=slide)
    return partial(peers_spark.spark_rocksdb, query=query, output_mode="append")


SIDES = ("holdfast", "holdfast_through_spark", "spark_rocksdb")
KINDS: Mapping[str, Mapping[str, Side]] = {
    kind: {
        "holdfast": partial(holdfast_side, build=build),
        "holdfast_through_spark": partial(holdfast_side, build=build, direct=False),
        "spark_rocksdb": spark_side(slide),
    }
    for kind, build, slide in (("tumbling", tumbling, None), ("sliding", sliding, SLIDE))
}

BARS = {
    "tumbling_vs_spark_rocksdb": Bar("at least", 3.0),
    "sliding_vs_spark_rocksdb": Bar("at least", 3.0),
}

# Two minutes of event time that count, after two that do not.
SIZE = Size("windows", 200_000, warmup=12, epochs=12, rounds=3, sides=SIDES)
WARM_EPOCHS = 12

QUICK_KEYS = 100
QUICK_ROWS = 1_000
# Three files of a minute each: windows close even there.
QUICK_SPAN_S = 60


def run(
    json_path: Path | None = None,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    seed: int = 1,
    sides: Sequence[str] = SIDES,
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    size, keys, span_s = SIZE, KEYS, SPAN_S
    if quick:
        size = replace(size, rows=QUICK_ROWS, warmup=1, epochs=2, rounds=1)
        keys, span_s = QUICK_KEYS, QUICK_SPAN_S
    warm = replace(size, warmup=0, epochs=1 if quick else WARM_EPOCHS, rounds=1)
    home = directory or default_directory()
    parameters = {
        "keys": keys,
        "span_s": span_s,
        "window": WINDOW,
        "slide": SLIDE,
        "late": LATE,
        "kinds": list(kinds),
        "sizes": [asdict(one) for one in (warm, size)],
        "sides": list(sides),
        "session": peers_spark.SESSION_CONF,
        "quick": quick,
    }
    report = Report("windows", seed, parameters, bars={} if quick else BARS)
    with measuring(report, spark, json_path) as session:
        for kind in kinds:
            chosen = {name: KINDS[kind][name] for name in sides}
            warming, counted = replace(warm, label=f"warm {kind}"), replace(size, label=kind)
            measure(session, warming, inputs(home, warming, keys, span_s, seed), chosen)
            rounds = measure(session, counted, inputs(home, counted, keys, span_s, seed), chosen)
            add_rounds(report, counted, rounds)
            report.figures += figures_of(kind, rounds)
    return report


def inputs(home: Path, size: Size, keys: int, span_s: int, seed: int) -> DataSet:
    return key_set(
        home, keys=keys, rows=size.rows, span_s=span_s, warmup=size.warmup, epochs=size.epochs, seed=seed
    )


def figures_of(kind: str, rounds: Rounds) -> list[Figure]:
    """Throughput relative to Spark, by median epochs and by mean ones, if both sides took part."""
    if not {"holdfast", "spark_rocksdb"} <= rounds.keys():
        return []
    theirs, ours = rounds["spark_rocksdb"], rounds["holdfast"]
    name = f"{kind}_vs_spark_rocksdb"
    figures = [ratio(name, theirs, ours), ratio(f"{name}_mean", theirs, ours, statistics.mean)]
    if "holdfast_through_spark" in rounds:
        figures.append(
            ratio(f"{kind}_through_spark_vs_spark_rocksdb", theirs, rounds["holdfast_through_spark"])
        )
    return figures
