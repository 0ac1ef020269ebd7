"""`holdfast bench dedup`: rows let through once by their id, against Spark's two ways to drop duplicates.

A tenth of the rows repeat an id of their own or an earlier file. The horizon is an hour; all files of a round
together span less, spread over most of its slices, so that every id stays live and every side lets through the
same rows. The first files of a round fill the state with about a million ids and are not counted.
`dropDuplicatesWithinWatermark` promises what Holdfast does, forgetting included; `dropDuplicates` without a
watermark remembers every id for ever, and so need not look for what to forget.

Bytes an id are those of all run files of the newest spine, Bloom filters included, over the live ids, after a
run of Holdfast's that only fills its state.

What it does not show: ids that expire, recovery, more than one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from holdfast.bench import peers_spark
from holdfast.bench.data import DataSet, default_directory, scratch
from holdfast.bench.event_data import id_set
from holdfast.bench.holdfast_side import holdfast_side, run_flow
from holdfast.bench.report import Bar, Figure, Report, ratio
from holdfast.bench.rounds import Rounds, Side, Size, add_rounds, measure, measuring
from holdfast.core.json import Json
from holdfast.flow.flow import Stream
from holdfast.ledger.status import status

WITHIN = "1 hour"
STAGE = "unique"

# Event time of one file: the 13 files of a round span 52 minutes of the hour.
SPAN_S = 240
REPEATED = 0.1


def unique(rows: Stream) -> Stream:
    """Holdfast's dedup."""
    return rows.dedup("id", time="ts", within=WITHIN).named(STAGE)


def within_watermark(rows: DataFrame) -> DataFrame:
    """Spark's dedup that forgets an id once the watermark has left it behind."""
    return rows.withWatermark("ts", WITHIN).dropDuplicatesWithinWatermark(["id"])


def without_horizon(rows: DataFrame) -> DataFrame:
    """Spark's dedup that forgets nothing."""
    return rows.dropDuplicates(["id"])


SIDES: Mapping[str, Side] = {
    "holdfast": partial(holdfast_side, build=unique),
    "holdfast_through_spark": partial(holdfast_side, build=unique, direct=False),
    "spark_within_watermark": partial(
        peers_spark.spark_rocksdb, query=within_watermark, output_mode="append"
    ),
    "spark_dropduplicates": partial(peers_spark.spark_rocksdb, query=without_horizon, output_mode="append"),
}

BARS = {
    "vs_spark_within_watermark": Bar("at least", 5.0),
    "vs_spark_dropduplicates": Bar("at least", 3.0),
    "bytes_per_id": Bar("at most", 28.0),
}

SIZE = Size("200k", 200_000, warmup=5, epochs=8, rounds=3, sides=tuple(SIDES))
WARM = replace(SIZE, label="warm", warmup=0, epochs=12, rounds=1)

# The state whose bytes are counted: 10M ids in 5 epochs.
FILL = Size("10m", 2_000_000, warmup=0, epochs=5, rounds=1, sides=("holdfast",))

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
    warm, size, fill = WARM, SIZE, FILL
    if quick:
        warm = replace(warm, rows=QUICK_ROWS, epochs=1)
        size = replace(size, rows=QUICK_ROWS, warmup=1, epochs=2, rounds=1)
        fill = replace(fill, rows=QUICK_ROWS)
    chosen = {name: SIDES[name] for name in sides}
    home = directory or default_directory()
    parameters = {
        "within": WITHIN,
        "span_s": SPAN_S,
        "repeated": REPEATED,
        "sizes": [asdict(one) for one in (warm, size, fill)],
        "sides": list(chosen),
        "session": peers_spark.SESSION_CONF,
        "quick": quick,
    }
    report = Report("dedup", seed, parameters, bars={} if quick else BARS)
    with measuring(report, spark, json_path) as session:
        measure(session, warm, inputs(home, warm, seed), chosen)
        rounds = measure(session, size, inputs(home, size, seed), chosen)
        add_rounds(report, size, rounds)
        report.figures += figures_of(rounds)
        if "holdfast" in chosen:
            filled = state_after(session, inputs(home, fill, seed, repeated=0.0))
            report.runs.append({"size": fill.label, "side": "holdfast", **filled})
            report.figures.append(bytes_per_id(filled))
    return report


def inputs(home: Path, size: Size, seed: int, repeated: float = REPEATED) -> DataSet:
    return id_set(
        home,
        rows=size.rows,
        repeated=repeated,
        span_s=SPAN_S,
        warmup=size.warmup,
        epochs=size.epochs,
        seed=seed,
    )


def state_after(spark: SparkSession, made: DataSet) -> Json:
    """Run Holdfast's dedup over a data set without repeats; what the ledger then says of its state."""
    with scratch(made.files) as work_dir:
        run_flow(spark, made.directory, work_dir, made.schema, unique)
        stage = status(work_dir)["stages"][STAGE]
    ids = made.rows * len(made.files)
    if stage["state_rows"] != ids:
        raise RuntimeError(f"the state holds {stage['state_rows']:,} ids, not the {ids:,} of the files")
    Console(stderr=True).print(f"{ids:,} ids: {stage['state_bytes']:,} bytes in {stage['runs']} runs")
    return {name: stage[name] for name in ("state_rows", "state_bytes", "layers", "runs")}


def bytes_per_id(filled: Json) -> Figure:
    each = filled["state_bytes"] / filled["state_rows"]
    return Figure("bytes_per_id", each, each, each)


def figures_of(rounds: Rounds) -> list[Figure]:
    """Throughput relative to each of Spark's sides that took part, either way in: its time over ours."""
    ways = {"holdfast": "vs", "holdfast_through_spark": "through_spark_vs"}
    return [
        ratio(f"{name}_{peer}", rounds[peer], rounds[side])
        for side, name in ways.items()
        for peer in rounds
        if side in rounds and peer not in ways
    ]
