"""`holdfast bench growth`: what an epoch costs as the state behind it grows.

For each seed and each size, one flow is run as a user would run it, merges, shipping and sweeping beside its
epochs: an epoch that a merge delays is a long epoch here. The first epochs fill the state; those that count
each touch the same number of random distinct keys. A run is long enough for its bottom layer, and so every
level of its spine, to be merged while it counts. At each position, the sample that counts is the median of
the seeded runs: a single slow epoch is noise, one that is slow for every seed is a stall.

What it does not show: growth beyond the page cache, or keys that are hot.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import data
from holdfast.bench.holdfast_side import commit_to_commit, run_flow, running_aggregate
from holdfast.bench.report import Bar, Figure, Line, Report, spread
from holdfast.bench.rounds import measuring
from holdfast.core import limits

BARS = {
    "time_10m_over_100k": Bar("at most", 1.5),
    "operator_time_10m_over_100k": Bar("at most", 1.5),
    "layer_bytes_10m_over_100k": Bar("at most", 1.1),
    "merge_bytes_over_layer_bytes": Bar("at most", 6.0),
    "longest_over_median": Bar("at most", 3.0),
}

# Epochs that are run and not counted after the state is filled, while the JVM still compiles.
WARMUP_EPOCHS = 10

# Rows of the epochs that fill the state.
FILLING_ROWS = 2_000_000


@dataclass(frozen=True)
class EpochSample:
    """What one epoch cost: all of it, the part inside the operator, and the bytes of its own layer."""

    seconds: float
    operator_seconds: float
    layer_bytes: int


@dataclass(frozen=True)
class GrowthRun:
    """One seeded run at one state size."""

    keys: int
    seed: int
    samples: list[EpochSample]
    merge_bytes: int
    every_level_merged: bool


def run(
    json_path: Path | None = None,
    *,
    sizes: Sequence[int] = (100_000, 1_000_000, 10_000_000),
    touched: int = 10_000,
    epochs: int = 200,
    seeds: int = 3,
    seed: int = 1,
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    if quick:
        sizes, touched, epochs, seeds = (1_000, 2_000), 200, 4, 1
    parameters = {"sizes": list(sizes), "touched": touched, "epochs": epochs, "seeds": seeds, "quick": quick}
    report = Report("growth", seed, parameters, bars={} if quick else BARS)
    home = directory or data.default_directory()
    home.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    runs: list[GrowthRun] = []
    with measuring(report, spark, json_path) as session:
        for number in range(seeds):
            for keys in sizes:
                counted = epochs if quick else max(epochs, epochs_to_merge_all(keys, touched))
                done = grow(session, home, keys=keys, touched=touched, epochs=counted, seed=seed + number)
                median = statistics.median(sample.seconds for sample in done.samples)
                console.print(
                    f"seed {seed + number}, {keys:,} keys: {median:.3f} s an epoch, {counted} epochs"
                )
                runs.append(done)
        add_to(report, runs, touched)
    return report


def epochs_to_merge_all(keys: int, touched: int) -> int:
    """Epochs after which the layers above the bottom have grown to the share that merges it, and a few more."""
    return int(keys * limits.MERGE_BOTTOM_SHARE / touched * 1.1) + limits.MERGE_FANOUT


def grow(spark: SparkSession, home: Path, *, keys: int, touched: int, epochs: int, seed: int) -> GrowthRun:
    """Fill a state, then run epochs that touch a few keys of it."""
    with tempfile.TemporaryDirectory(prefix="growth-", dir=home) as name:
        inputs = Path(name) / "in"
        filling = data.filling_files(inputs, keys=keys, rows=FILLING_ROWS, seed=seed)
        first = filling + WARMUP_EPOCHS
        for position in range(WARMUP_EPOCHS + epochs):
            data.touching_file(inputs, filling + position, keys=keys, touched=touched, seed=seed)
        done = run_flow(spark, inputs, Path(name) / "work", data.SCHEMA, running_aggregate)
    seconds = commit_to_commit(done)
    counted = [
        EpochSample(seconds[sample.epoch], sample.operator_seconds, sample.layer_bytes)
        for sample in done.samples[first:]
    ]
    merges = [merge for merge in done.merges if merge.last >= first]
    return GrowthRun(
        keys, seed, counted, sum(merge.bytes for merge in merges), any(merge.first == 0 for merge in merges)
    )


def add_to(report: Report, runs: Sequence[GrowthRun], touched: int) -> None:
    """Put the runs into the report, with the figures that follow from them."""
    by_keys = grouped(runs)
    for keys, seeded in by_keys.items():
        seconds = per_position(seeded, lambda sample: sample.seconds)
        report.lines.append(Line(f"{keys:,} keys", "holdfast", spread(seconds), touched))
    report.figures += figures_of(by_keys)
    report.runs += [asdict(run) for run in runs]


def grouped(runs: Sequence[GrowthRun]) -> dict[int, list[GrowthRun]]:
    by_keys: dict[int, list[GrowthRun]] = {}
    for run in runs:
        by_keys.setdefault(run.keys, []).append(run)
    return by_keys


def per_position(runs: Sequence[GrowthRun], measure: Callable[[EpochSample], float]) -> list[float]:
    """At each position that all runs reached, the median over the runs."""
    return [
        statistics.median(measure(sample) for sample in at_position)
        for at_position in zip(*(run.samples for run in runs), strict=False)
    ]


def figures_of(by_keys: Mapping[int, Sequence[GrowthRun]]) -> list[Figure]:
    """Largest state over smallest for costs that must not grow; the worst size for the other two."""
    small, large = by_keys[min(by_keys)], by_keys[max(by_keys)]
    return [
        growth("time_10m_over_100k", large, small, lambda sample: sample.seconds),
        growth("operator_time_10m_over_100k", large, small, lambda sample: sample.operator_seconds),
        growth("layer_bytes_10m_over_100k", large, small, lambda sample: sample.layer_bytes),
        worst("merge_bytes_over_layer_bytes", [merge_share(runs) for runs in by_keys.values()]),
        worst("longest_over_median", [longest_share(runs) for runs in by_keys.values()]),
    ]


def growth(
    name: str,
    large: Sequence[GrowthRun],
    small: Sequence[GrowthRun],
    measure: Callable[[EpochSample], float],
) -> Figure:
    """Median over the positions at the larger size over that at the smaller; spread over the seeds."""

    def over(above: Sequence[GrowthRun], below: Sequence[GrowthRun]) -> float:
        return statistics.median(per_position(above, measure)) / statistics.median(
            per_position(below, measure)
        )

    alone = [over([one], [other]) for one, other in zip(large, small, strict=True)]
    return Figure(name, over(large, small), min(alone), max(alone))


def merge_share(runs: Sequence[GrowthRun]) -> float:
    """Bytes of merges over bytes of the epochs' own layers: the median of the seeded runs."""
    return statistics.median(
        run.merge_bytes / sum(sample.layer_bytes for sample in run.samples) for run in runs
    )


def longest_share(runs: Sequence[GrowthRun]) -> float:
    seconds = per_position(runs, lambda sample: sample.seconds)
    return max(seconds) / statistics.median(seconds)


def worst(name: str, values: Sequence[float]) -> Figure:
    return Figure(name, max(values), min(values), max(values))
