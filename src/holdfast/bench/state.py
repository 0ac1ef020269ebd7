"""`holdfast bench state`: a running sum and count over many keys, against Spark's own state stores.

Before the first round every side runs a data set of its own once: a cold JVM would be slow for whoever comes
first. The first files of a round fill the state with all keys; the counted epochs are the first that all sides
run on a full state.

What it does not show: recovery, more than one machine, keys that are not uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench import data, peers_spark
from holdfast.bench.holdfast_side import holdfast_side, running_aggregate
from holdfast.bench.report import Bar, Figure, Report, ratio
from holdfast.bench.rounds import Rounds, Side, Size, add_rounds, measure, measuring


def totals(rows: DataFrame) -> DataFrame:
    """The running aggregate as a streaming query."""
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count(F.lit(1)).alias("n"))


SIDES: Mapping[str, Side] = {
    "holdfast": partial(holdfast_side, build=running_aggregate),
    "spark_rocksdb": partial(peers_spark.spark_rocksdb, query=totals, output_mode="update"),
    "spark_default": partial(peers_spark.spark_default, query=totals, output_mode="update"),
    "stateless": peers_spark.stateless,
}

BARS = {
    "vs_spark_rocksdb_200k": Bar("at least", 4.0),
    "vs_spark_default_200k": Bar("at least", 2.5),
    "vs_spark_rocksdb_2m": Bar("at least", 4.0),
    "over_stateless_200k": Bar("at most", 2.0),
    "over_stateless_2m": Bar("at most", 1.4),
}

SIZES = (
    Size("200k", 200_000, warmup=3, epochs=8, rounds=3, sides=tuple(SIDES)),
    # A round of 2M-row epochs takes minutes, and no figure needs the default provider here.
    Size("2m", 2_000_000, warmup=1, epochs=3, rounds=3, sides=("holdfast", "spark_rocksdb", "stateless")),
)
WARM = Size("warm", 200_000, warmup=0, epochs=5, rounds=1, sides=tuple(SIDES))

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
    with measuring(report, spark, json_path) as session:
        measure(session, warm, inputs(home, warm, min(keys, warm.rows), seed), chosen)
        for size in sizes:
            rounds = measure(session, size, inputs(home, size, keys, seed), chosen)
            add_rounds(report, size, rounds)
            report.figures += figures_of(size.label, rounds)
    return report


def inputs(home: Path, size: Size, keys: int, seed: int) -> data.DataSet:
    return data.data_set(home, keys=keys, rows=size.rows, warmup=size.warmup, epochs=size.epochs, seed=seed)


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
