"""`holdfast bench growth`: what an epoch costs as the state behind it grows.

For each seed, one driver per state size; the drivers take turns epoch by epoch, so that all sizes see the
same minutes of the machine. An epoch touches the same number of random distinct keys at every size. Runs
go on until every level of every spine has merged once. At each position, the sample that counts is the
median of the seeded runs: a single slow epoch is noise, one that is slow for every seed is a stall.

What it does not show: growth beyond the page cache, or keys that are hot.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import data, peers_spark
from holdfast.bench.holdfast_side import EpochSample, GrowthDriver
from holdfast.bench.report import Bar, Figure, Line, Report, spread

BARS = {
    "time_10m_over_100k": Bar("at most", 1.5),
    "operator_time_10m_over_100k": Bar("at most", 1.5),
    "layer_bytes_10m_over_100k": Bar("at most", 1.1),
    "merge_bytes_over_layer_bytes": Bar("at most", 6.0),
    "longest_over_median": Bar("at most", 3.0),
}

# Epochs that are run and not counted after the prefill, while the JVM still compiles.
WARMUP_EPOCHS = 10

# A spine of which some level never merges would otherwise be waited for without end.
EPOCHS_MAX = 5_000


class Driver(Protocol):
    """What this benchmark needs of a running aggregate; see `holdfast_side.GrowthDriver`."""

    def prefill(self, keys: int) -> None: ...
    def epoch(self, file: Path) -> EpochSample: ...
    def merge_bytes(self) -> int: ...
    def every_level_merged(self) -> bool: ...
    def close(self) -> None: ...


MakeDriver = Callable[[SparkSession, Path], Driver]


@dataclass
class GrowthRun:
    """One seeded run at one state size."""

    keys: int
    seed: int
    samples: list[EpochSample] = field(default_factory=list)
    merge_bytes: int = 0
    every_level_merged: bool = False


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
    make_driver: MakeDriver = GrowthDriver,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    epochs_max = EPOCHS_MAX
    if quick:
        sizes, touched, epochs, seeds, epochs_max = (1_000, 3_000, 10_000), 100, 5, 2, 5
    parameters = {"sizes": list(sizes), "touched": touched, "epochs": epochs, "seeds": seeds, "quick": quick}
    report = Report("growth", seed, parameters, bars={} if quick else BARS)
    home = directory or data.default_directory()
    home.mkdir(parents=True, exist_ok=True)
    session = spark or peers_spark.session()
    console = Console(stderr=True)
    runs: list[GrowthRun] = []
    try:
        for number in range(seeds):
            console.print(f"seed {seed + number}: states of {', '.join(f'{size:,}' for size in sizes)} keys")
            with tempfile.TemporaryDirectory(prefix="growth-", dir=home) as name:
                runs += seeded_runs(
                    lambda at: make_driver(session, at),
                    Path(name),
                    sizes=sizes,
                    touched=touched,
                    epochs_min=epochs,
                    epochs_max=epochs_max,
                    seed=seed + number,
                )
    finally:
        if spark is None:
            session.stop()
    add_to(report, runs, touched)
    report.show(console=None)
    if json_path:
        report.write(json_path)
    return report


def seeded_runs(
    make_driver: Callable[[Path], Driver],
    directory: Path,
    *,
    sizes: Sequence[int],
    touched: int,
    epochs_min: int,
    epochs_max: int,
    seed: int,
) -> list[GrowthRun]:
    """One run per size, their epochs interleaved, until all have merged every level or the bound is met."""
    runs = [GrowthRun(keys, seed) for keys in sizes]
    with ExitStack() as open_drivers:
        drivers = [
            open_drivers.enter_context(closing(make_driver(directory / f"state-{keys}"))) for keys in sizes
        ]
        for driver, keys in zip(drivers, sizes, strict=True):
            driver.prefill(keys)
        pairs = list(zip(runs, drivers, strict=True))

        def step(position: int) -> list[EpochSample]:
            return [
                driver.epoch(
                    data.touching_file(
                        directory, keys=run.keys, touched=touched, seed=seed, position=position
                    )
                )
                for run, driver in pairs
            ]

        for position in range(WARMUP_EPOCHS):
            step(position)
        merged_before = [driver.merge_bytes() for driver in drivers]
        for position in range(epochs_max):
            if position >= epochs_min and all(driver.every_level_merged() for driver in drivers):
                break
            for run, sample in zip(runs, step(WARMUP_EPOCHS + position), strict=True):
                run.samples.append(sample)
        for (run, driver), before in zip(pairs, merged_before, strict=True):
            run.merge_bytes = driver.merge_bytes() - before
            run.every_level_merged = driver.every_level_merged()
    return runs


def add_to(report: Report, runs: Sequence[GrowthRun], touched: int) -> None:
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
