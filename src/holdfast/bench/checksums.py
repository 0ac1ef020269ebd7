"""`holdfast bench checksums`: what it costs that every byte of state is checked before it is read.

The flows of `bench state` and `bench growth`, each with checksums and without, in turns, in one session on the same
files. Times are means, not medians: a block is checked when a process first reads it, so the cost falls on the first
epochs and on those behind a merge, which a median would pass over.

What it does not show: states beyond the page cache, and segments between stages, which these flows do not have.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import data, growth, state
from holdfast.bench.holdfast_side import holdfast_side, running_aggregate
from holdfast.bench.report import Bar, Figure, Line, Report, ratio, spread
from holdfast.bench.rounds import Rounds, Side, Size, add_rounds, measure, measuring, turned
from holdfast.storage.checksums import switched

CHECKED, UNCHECKED = "checked", "unchecked"

BARS = {
    f"{name}_over_unchecked": Bar("at most", 1.03)
    for name in ("state_200k", "state_2m", "growth_100000", "growth_1000000", "growth_10000000")
}

SIZES = (
    Size("200k", 200_000, warmup=3, epochs=16, rounds=6, sides=(CHECKED, UNCHECKED)),
    Size("2m", 2_000_000, warmup=1, epochs=3, rounds=6, sides=(CHECKED, UNCHECKED)),
)


def run(
    json_path: Path | None = None,
    *,
    keys: int = 1_000_000,
    grown: Sequence[int] = (100_000, 1_000_000, 10_000_000),
    touched: int = 10_000,
    epochs: int | None = None,
    seeds: int = 4,
    seed: int = 1,
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    sizes: Sequence[Size] = SIZES
    if quick:
        sizes = (replace(SIZES[0], rows=1_000, warmup=0, epochs=2, rounds=1),)
        keys, grown, touched, epochs, seeds = 2_000, (1_000,), 200, 4, 1
    sized = [asdict(size) for size in sizes]
    parameters = {"keys": keys, "sizes": sized, "grown": list(grown), "touched": touched, "seeds": seeds}
    report = Report("checksums", seed, {**parameters, "quick": quick}, bars={} if quick else BARS)
    home = directory or data.default_directory()
    home.mkdir(parents=True, exist_ok=True)
    with measuring(report, spark, json_path) as session:
        warm = replace(sizes[0], rounds=1)
        measure(session, warm, state.inputs(home, warm, min(keys, warm.rows), seed), _sides())
        for size in sizes:
            rounds = measure(session, size, state.inputs(home, size, keys, seed), _sides())
            add_rounds(report, size, rounds)
            report.figures.append(_figure(f"state_{size.label}", rounds))
        for state_keys in grown:
            _grow(session, report, home, state_keys, touched, epochs, range(seed, seed + seeds))
    return report


def _sides() -> Mapping[str, Side]:
    return {CHECKED: partial(_side, True), UNCHECKED: partial(_side, False)}


def _side(checked: bool, spark: SparkSession, made: data.DataSet) -> list[float]:
    with switched(checked):
        return holdfast_side(spark, made, build=running_aggregate)


def _grow(
    spark: SparkSession,
    report: Report,
    home: Path,
    keys: int,
    touched: int,
    epochs: int | None,
    seeds: Sequence[int],
) -> None:
    """The same seeds both ways; long enough for every level of the spine to be merged, unless told."""
    counted = epochs or max(200, growth.epochs_to_merge_all(keys, touched))
    rounds: dict[str, list[list[float]]] = {CHECKED: [], UNCHECKED: []}
    console = Console(stderr=True)
    for number, seed in enumerate(seeds):
        for side in turned(list(rounds), number):
            with switched(side == CHECKED):
                done = growth.grow(spark, home, keys=keys, touched=touched, epochs=counted, seed=seed)
            rounds[side].append([sample.seconds for sample in done.samples])
            mean = statistics.mean(rounds[side][-1])
            console.print(f"growth {keys:,} keys, seed {seed}, {side}: {mean:.3f} s an epoch")
    for side, samples in rounds.items():
        flat = [second for one_round in samples for second in one_round]
        report.lines.append(Line(f"growth {keys:,} keys", side, spread(flat), touched))
        report.runs.append({"keys": keys, "side": side, "seconds": samples})
    report.figures.append(_figure(f"growth_{keys}", rounds))


def _figure(name: str, rounds: Rounds) -> Figure:
    return ratio(f"{name}_over_unchecked", rounds[CHECKED], rounds[UNCHECKED], statistics.mean)
