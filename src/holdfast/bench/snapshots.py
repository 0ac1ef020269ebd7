"""`holdfast bench snapshots`: what capturing a region costs, mode by mode, beside not capturing it.

Two measurements in one run: how long a snapshot takes with epochs queued before a slow stage (`snapshot_queue.py`), and
what snapshots every second cost an epoch, and how many bytes they carry, as the state grows (`snapshot_state.py`). Modes
take turns; figures are over all rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.bench import data
from holdfast.bench.report import Bar, Figure, Report, wide_console
from holdfast.bench.rounds import measuring, turned
from holdfast.bench.snapshot_queue import Taken, taken_under_load
from holdfast.bench.snapshot_state import NO_SYNC, STATE_BYTES_A_KEY, Cost, FilledState, p99

BARS = {
    "aligned_over_unaligned_backpressure": Bar("at least", 5.0),
    "bytes_1gb_over_100mb": Bar("at most", 1.2),
    "bytes_100mb_over_1gb": Bar("at most", 1.2),
}

MODES = ("aligned", "unaligned", "freeze", NO_SYNC)
SIZES = {"10 MB": 10_000_000, "100 MB": 100_000_000, "1 GB": 1_000_000_000}
QUEUED = 20

# Tasks that run at a time: the slow stage's sleep, and must not keep those of the fast one waiting.
SLOTS = 4

# By size, the costs of every mode in all rounds.
Costs = Mapping[str, list[Cost]]


def run(
    json_path: Path | None = None,
    *,
    sizes: Mapping[str, int] = SIZES,
    touched: int = 20_000,
    epochs: int = 30,
    rounds: int = 2,
    seed: int = 1,
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    queued = QUEUED
    if quick:
        sizes = {"100 MB": 100_000, "1 GB": 200_000}
        touched, epochs, rounds, queued = 200, 4, 1, 2
    parameters = {
        "sizes": dict(sizes),
        "touched": touched,
        "epochs": epochs,
        "rounds": rounds,
        "queued": queued,
    }
    report = Report("snapshots", seed, {**parameters, "quick": quick}, bars={} if quick else BARS)
    home = directory or data.default_directory()
    home.mkdir(parents=True, exist_ok=True)
    with measuring(report, spark, json_path, {"spark.master": f"local[{SLOTS}]"}) as session:
        queues = _queues(session, home, rounds, queued, seed)
        costs = {
            size: _costs(session, home, size, bytes_wanted, touched, epochs, rounds, seed)
            for size, bytes_wanted in sizes.items()
        }
        report.figures += figures_of(queues, costs)
        report.runs += [{"measured": "queue", **asdict(taken)} for taken in queues]
        report.runs += [
            {"measured": "state", "size": size, **asdict(cost)}
            for size, found in costs.items()
            for cost in found
        ]
        console = wide_console()
        console.print(queue_table(queues))
        console.print(state_table(costs))
    return report


def figures_of(queues: Sequence[Taken], costs: Costs) -> list[Figure]:
    """Aligned over unaligned with epochs queued; bytes of large over small states; the worst epochs of each mode."""
    large = costs["1 GB"]
    return [
        _ratio(
            "aligned_over_unaligned_backpressure",
            [taken.seconds for taken in queues if taken.mode == "aligned"],
            [taken.seconds for taken in queues if taken.mode == "unaligned"],
        ),
        _ratio("bytes_1gb_over_100mb", _bytes(large), _bytes(costs["100 MB"])),
        _ratio("bytes_100mb_over_1gb", _bytes(costs["100 MB"]), _bytes(large)),
        *(_stall(mode, large) for mode in MODES),
        *(
            _ratio(f"epoch_{mode}_over_no_sync_1gb", _medians(large, mode), _medians(large, NO_SYNC))
            for mode in MODES
            if mode != NO_SYNC
        ),
    ]


def queue_table(queues: Sequence[Taken]) -> Table:
    """By mode: how long, with how many epochs queued, and how many of them became part of the snapshot."""
    table = _table("bench snapshots: one snapshot with epochs queued before a slow stage")
    for title in ("seconds", "queued", "in flight"):
        table.add_column(title, justify="right")
    for mode in dict.fromkeys(taken.mode for taken in queues):
        found = [taken for taken in queues if taken.mode == mode]
        numbers = statistics.median(taken.seconds for taken in found), min(taken.queued for taken in found)
        table.add_row(mode, f"{numbers[0]:.2f}", f"{numbers[1]}", f"{max(t.in_flight for t in found)}")
    return table


def state_table(costs: Costs) -> Table:
    """By size and mode: epochs, latency, and what snapshots carried."""
    table = _table("bench snapshots: snapshots every second while the state grows", "state", "mode")
    for title in ("epoch ms", "p99 ms", "p99/median", "latency p99 ms", "snapshots", "KB a snapshot"):
        table.add_column(title, justify="right")
    for size, found in costs.items():
        for mode in MODES:
            rounds = [cost for cost in found if cost.mode == mode]
            seconds = [second for cost in rounds for second in cost.epoch_s]
            latency = [second for cost in rounds for second in cost.latency_s]
            number = sum(cost.snapshots for cost in rounds)
            carried = sum(cost.snapshot_bytes for cost in rounds) / number / 1000 if number else 0
            table.add_row(
                size,
                mode,
                f"{statistics.median(seconds) * 1000:,.0f}",
                f"{p99(seconds) * 1000:,.0f}",
                f"{p99(seconds) / statistics.median(seconds):.2f}",
                f"{p99(latency) * 1000:,.0f}",
                f"{number}",
                f"{carried:,.0f}",
            )
    return table


def _queues(spark: SparkSession, home: Path, rounds: int, queued: int, seed: int) -> list[Taken]:
    found = []
    for number in range(rounds):
        for mode in turned(("aligned", "unaligned"), number):
            found.append(taken_under_load(spark, home, mode, queued=queued, seed=seed))
            _say(f"queue, round {number + 1}, {mode}: {found[-1].seconds:.2f} s")
    return found


def _costs(
    spark: SparkSession,
    home: Path,
    size: str,
    bytes_wanted: int,
    touched: int,
    epochs: int,
    rounds: int,
    seed: int,
) -> list[Cost]:
    found = []
    with TemporaryDirectory(prefix="state-", dir=home) as name:
        filled = FilledState(spark, Path(name), bytes_wanted // STATE_BYTES_A_KEY, touched, epochs, seed)
        for number in range(rounds):
            for mode in turned(MODES, number):
                found.append(filled.cost(mode))
                median = statistics.median(found[-1].epoch_s)
                _say(f"{size}, round {number + 1}, {mode}: {median:.3f} s an epoch")
    return found


def _bytes(costs: Sequence[Cost]) -> list[float]:
    """What all snapshots of a run carried: runs have the same epochs, whatever the number of snapshots."""
    return [float(cost.snapshot_bytes) for cost in costs if cost.mode != NO_SYNC]


def _medians(costs: Sequence[Cost], mode: str) -> list[float]:
    return [statistics.median(cost.epoch_s) for cost in costs if cost.mode == mode]


def _stall(mode: str, costs: Sequence[Cost]) -> Figure:
    found = [cost.stall for cost in costs if cost.mode == mode]
    return Figure(f"stall_p99_over_median_{mode}", statistics.median(found), min(found), max(found))


def _ratio(name: str, over: Sequence[float], under: Sequence[float]) -> Figure:
    alone = [one / other for one, other in zip(over, under, strict=True)]
    return Figure(name, statistics.median(over) / statistics.median(under), min(alone), max(alone))


def _table(title: str, *first: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in first or ("mode",):
        table.add_column(name, no_wrap=True)
    return table


def _say(words: str) -> None:
    Console(stderr=True).print(words)
