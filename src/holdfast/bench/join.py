"""`holdfast bench join`: an interval join of two streams, against Spark's stream-stream join.

Keys are drawn uniformly on both sides; event time advances ten seconds a file, and a pair's times lie at most ten
seconds apart, so that a row finds one partner on average. Both sides are fed a file of each stream an epoch, join
inner, and discard the pairs. The first files of a round are not counted: they fill the state until as many rows
expire as come.

What it does not show: rows that are late, left joins, recovery, more than one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from holdfast.flow.endpoints import files
from holdfast.flow.flow import Stream

NEAR = "10 seconds"
LATE = "10 seconds"

# Event time of one file. A row's partners are among the rows of twenty seconds: two files, as many rows as keys.
SPAN_S = 10
KEYS = 400_000


@dataclass(frozen=True)
class TwoSets(DataSet):
    """The files of the left stream, and beside them those of the right."""

    right: DataSet | None = None


def holdfast_join(spark: SparkSession, made: DataSet, direct: bool = True) -> list[float]:
    """Holdfast's join."""
    return holdfast_side(spark, made, build=partial(joined, right=_right(made)), direct=direct)


def joined(rows: Stream, right: DataSet) -> Stream:
    """The rows of a stream with those of the right data set."""
    source = files(str(right.directory), schema=right.schema, max_files_per_epoch=1)
    other = rows.flow.source("right", source)
    pairs = rows.join(other, on="k", time=("ts", "ts"), within=(f"-{NEAR}", NEAR), late=LATE)
    return pairs.named("pairs")


def spark_join(spark: SparkSession, made: DataSet) -> list[float]:
    """The same as a streaming query."""
    query = partial(spark_pairs, right=_right(made))
    return peers_spark.spark_rocksdb(spark, made, query=query, output_mode="append")


def spark_pairs(rows: DataFrame, right: DataSet) -> DataFrame:
    """Both sides with a watermark, so that Spark can forget rows as Holdfast does."""
    reader = rows.sparkSession.readStream.schema(right.schema).option("maxFilesPerTrigger", 1)
    one = rows.withWatermark("ts", LATE).alias("l")
    other = reader.parquet(str(right.directory)).withWatermark("ts", LATE).alias("r")
    near = f"l.k = r.k and r.ts between l.ts - interval {NEAR} and l.ts + interval {NEAR}"
    return one.join(other, F.expr(near))


SIDES: Mapping[str, Side] = {
    "holdfast": holdfast_join,
    "holdfast_through_spark": partial(holdfast_join, direct=False),
    "spark_rocksdb": spark_join,
}

BARS = {"join_vs_spark_rocksdb": Bar("at least", 3.0)}

# 200k rows of each stream. From the fourth file on as many rows expire as come; Spark takes long over an epoch.
SIZE = Size("200k", 200_000, warmup=3, epochs=3, rounds=3, sides=tuple(SIDES))
WARM_EPOCHS = 2

QUICK_KEYS = 500
QUICK_ROWS = 1_000


def run(
    json_path: Path | None = None,
    *,
    seed: int = 1,
    sides: Sequence[str] = tuple(SIDES),
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    size, keys = SIZE, KEYS
    if quick:
        size, keys = replace(size, rows=QUICK_ROWS, warmup=1, epochs=2, rounds=1), QUICK_KEYS
    warm = replace(size, label="warm", warmup=0, epochs=1 if quick else WARM_EPOCHS, rounds=1)
    chosen = {name: SIDES[name] for name in sides}
    home = directory or default_directory()
    parameters = {
        "keys": keys,
        "span_s": SPAN_S,
        "near": NEAR,
        "late": LATE,
        "sizes": [asdict(one) for one in (warm, size)],
        "sides": list(chosen),
        "session": peers_spark.SESSION_CONF,
        "quick": quick,
    }
    report = Report("join", seed, parameters, bars={} if quick else BARS)
    with measuring(report, spark, json_path) as session:
        measure(session, warm, inputs(home, warm, keys, seed), chosen)
        rounds = measure(session, size, inputs(home, size, keys, seed), chosen)
        add_rounds(report, size, rounds)
        report.figures += figures_of(rounds)
    return report


def inputs(home: Path, size: Size, keys: int, seed: int) -> TwoSets:
    """Two data sets of one size: the same draws under two seeds."""
    left, right = (
        key_set(
            home,
            keys=keys,
            rows=size.rows,
            span_s=SPAN_S,
            warmup=size.warmup,
            epochs=size.epochs,
            seed=number,
        )
        for number in (2 * seed, 2 * seed + 1)
    )
    return TwoSets(left.files, left.uncounted, left.rows, left.schema, right)


def figures_of(rounds: Rounds) -> list[Figure]:
    """Throughput relative to Spark, either way in, of the sides that took part."""
    ways = {"holdfast": "join", "holdfast_through_spark": "join_through_spark"}
    return [
        ratio(f"{name}_vs_spark_rocksdb", rounds["spark_rocksdb"], rounds[side])
        for side, name in ways.items()
        if {side, "spark_rocksdb"} <= rounds.keys()
    ]


def _right(made: DataSet) -> DataSet:
    assert isinstance(made, TwoSets)
    assert made.right is not None
    return made.right
