"""`holdfast bench recovery`: kill -9 the primary at full load, for every policy, beside plain Structured Streaming.

Every policy runs as a user would run it: `holdfast run` in processes of their own, on the job of policy_job.py, with
files that never run out. A kill comes when whoever should stand by is warm (or hot) and the primary has committed some
epochs since, at a random moment of an epoch. Afterwards all times are read from the ledger: events and manifests carry
the wall clock of the one machine. Structured Streaming runs the same job in its own process; it is killed with its
JVM and started again at once, so that nothing of its time is the detection of anything.

The cold policy starts anew for every kill. So each of its kills has a failure-free start beside it, from the start of
the process to the first commit, that it is compared with.

What it does not show: more than one machine, a process that hangs instead of dying (the lease then adds its second), a
state that is large.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from holdfast.bench import policy_job
from holdfast.bench.command import MASTER, Command, commanded
from holdfast.bench.data import default_directory
from holdfast.bench.feed import AHEAD, Pool
from holdfast.bench.outage import CAUGHT_UP, PACE_EPOCHS, Outage, outage, pace_s
from holdfast.bench.policy_job import CASES, Case
from holdfast.bench.report import Bar, Figure, Report
from holdfast.bench.spark_job import SparkJob, streaming
from holdfast.core.errors import HoldfastError
from holdfast.flow.policies import Standby

SPARK = "spark"
COLD = CASES["no_sync"]

# The warm standby and Spark are compared, so they come next to each other.
SIDES = ("no_sync_warm", SPARK, *(name for name in CASES if name != "no_sync_warm"))

BARS = {
    "warm_first_epoch_s": Bar("at most", 1.5),
    "hot_gap_epochs": Bar("at most", 2.0),
    "cold_over_clean_s": Bar("at most", 1.0),
    "spark_over_warm": Bar("at least", 8.0),
}


@dataclass(frozen=True)
class Effort:
    """How much of the measurement to run."""

    kills: int
    settle: int  # epochs between the moment that all is ready and a kill
    settle_hot: int  # the same where both compute: a JVM gets faster for a hundred epochs, and both should be in stride
    caught_up_s_max: float  # how long to watch for it; the next kill comes later anyway
    rows: int
    keys: int
    files: int  # that are made up front


FULL = Effort(5, PACE_EPOCHS, 150, 30.0, policy_job.ROWS, policy_job.KEYS, 1_500)
QUICK = Effort(1, 3, 3, 2.0, policy_job.QUICK_ROWS, policy_job.QUICK_KEYS, 100)


@dataclass(frozen=True)
class Kill:
    """One kill of one side, and the failure-free start beside it if there was one."""

    side: str  # as the figures name it
    policy: str  # as a user writes it
    number: int
    outage: Outage
    clean_start_s: float | None = None

    def to_json(self) -> dict[str, object]:
        found = {**asdict(self.outage), "gap_epochs": self.outage.gap_epochs}
        named = {"side": self.side, "policy": self.policy, "kill": self.number}
        return {**named, **found, "clean_start_s": self.clean_start_s}


def run(
    json_path: Path | None = None,
    *,
    seed: int = 1,
    sides: Sequence[str] = SIDES,
    directory: Path | None = None,
    quick: bool = False,
) -> Report:
    """Measure, print the table and, if told where, write the JSON. `quick` only shows that it all runs."""
    effort = QUICK if quick else FULL
    parameters = {
        **asdict(effort),
        "window": policy_job.WINDOW,
        "late": policy_job.LATE,
        "span_s": policy_job.SPAN_S,
        "ahead": AHEAD,
        "pace_epochs": PACE_EPOCHS,
        "caught_up": CAUGHT_UP,
        "master": MASTER,
        "sides": list(sides),
        "quick": quick,
    }
    report = Report("recovery", seed, parameters, bars={} if quick else BARS)
    home = directory or default_directory()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recovery-", dir=home) as name:
        pool = Pool(Path(name) / "pool", effort.keys, effort.rows, policy_job.SPAN_S, seed)
        pool.fill(effort.files)
        kills = {side: list(_told(_kills(Path(name), side, pool, effort, seed))) for side in sides}
    report.runs += [kill.to_json() for found in kills.values() for kill in found]
    report.figures += figures_of({found[0].side: found for found in kills.values() if found})
    report.show()
    if json_path:
        report.write(json_path)
    return report


def _told(kills: Iterator[Kill]) -> Iterator[Kill]:
    console = Console(stderr=True)
    for kill in kills:
        found = kill.outage
        console.print(
            f"{kill.side} kill {kill.number + 1}: first epoch after {found.first_epoch_s:.2f} s,"
            f" {found.gap_epochs:.1f} epochs of {found.epoch_s:.2f} s between commits"
        )
        yield kill


def _kills(home: Path, side: str, pool: Pool, effort: Effort, seed: int) -> Iterator[Kill]:
    rng = random.Random(f"{seed} {side}")
    if side == SPARK:
        yield from spark_kills(home / side, pool, effort, rng)
    elif CASES[side] == COLD:
        for number in range(effort.kills):
            yield from policy_kills(home / side, CASES[side], pool, effort, rng, [number])
    else:
        yield from policy_kills(home / side, CASES[side], pool, effort, rng, range(effort.kills))


def policy_kills(
    home: Path, case: Case, pool: Pool, effort: Effort, rng: random.Random, numbers: Sequence[int]
) -> Iterator[Kill]:
    """Start the command and kill its primary so often."""
    with commanded(home, case, pool) as command:
        command.wait(f"{case.name}: the first epoch", lambda seen: seen.head >= 0)
        clean_s = clean_start_s(command) if case == COLD else None
        for number in numbers:
            yield Kill(case.recovery, case.call, number, killed(command, effort, rng), clean_s)
    shutil.rmtree(home)


def clean_start_s(command: Command) -> float:
    """From the start of the first worker's process to its first commit."""
    started_ms = command.event_ms("worker started")
    if started_ms is None:
        raise HoldfastError("no worker was started", operation="bench")
    return (command.commits()[0].at_ms - started_ms) / 1000


def killed(command: Command, effort: Effort, rng: random.Random) -> Outage:
    """Kill the primary when all is as it should be; what that cost."""
    hot = command.case.standby is Standby.HOT
    seen = command.settle(effort.settle_hot if hot else effort.settle)
    first = max(0, seen.head - 2 * PACE_EPOCHS)
    time.sleep(rng.random() * pace_s(command.commits(first)))
    at_ms = command.kill_primary()

    def so_far() -> Outage | None:
        promoted_ms = command.event_ms("promoted", at_ms)
        return outage(command.commits(first), at_ms, promoted_ms, hot) if promoted_ms else None

    command.wait("the first new epoch", lambda _: so_far() is not None, coming=True)
    deadline = time.monotonic() + effort.caught_up_s_max
    command.wait("the usual pace", lambda _: _caught_up(so_far()) or time.monotonic() > deadline)
    found = so_far()
    assert found is not None
    return found


def spark_kills(home: Path, pool: Pool, effort: Effort, rng: random.Random) -> Iterator[Kill]:
    """Kill the stream and start it again so often."""
    with streaming(home, pool) as job:
        for number in range(effort.kills):
            yield Kill(SPARK, "Structured Streaming", number, spark_killed(job, effort, rng))
    shutil.rmtree(home)


def spark_killed(job: SparkJob, effort: Effort, rng: random.Random) -> Outage:
    """Kill the stream once; what that cost."""
    commits = job.wait("its first batches", bool)
    settled = commits[-1].epoch + effort.settle
    commits = job.wait(f"batch {settled}", lambda found: found[-1].epoch >= settled)
    time.sleep(rng.random() * pace_s(commits))
    at_ms = job.kill()
    before = [commit for commit in job.commits() if commit.at_ms <= at_ms]
    job.again()

    def so_far() -> Outage | None:
        known = {commit.epoch: commit for commit in [*job.commits(), *before]}
        return outage([known[epoch] for epoch in sorted(known)], at_ms, None, hot=False)

    job.wait("a new batch", lambda _: so_far() is not None)
    deadline = time.monotonic() + effort.caught_up_s_max
    job.wait("the usual pace", lambda _: _caught_up(so_far()) or time.monotonic() > deadline)
    found = so_far()
    assert found is not None
    return found


def _caught_up(found: Outage | None) -> bool:
    return found is not None and found.caught_up_s is not None


def figures_of(kills: Mapping[str, Sequence[Kill]]) -> list[Figure]:
    """Medians over the kills of each side, and the comparisons of sides that took part."""
    figures = [figure for side, found in kills.items() for figure in _phases(side, found)]
    if "hot" in kills:
        figures.append(_median("hot_gap_s", [kill.outage.gap_s for kill in kills["hot"]]))
        figures.append(_median("hot_gap_epochs", [kill.outage.gap_epochs for kill in kills["hot"]]))
    if COLD.recovery in kills:
        figures += _against_a_clean_start(kills[COLD.recovery])
    if {"warm", SPARK} <= kills.keys():
        figures.append(_spark_over_warm(_firsts(kills[SPARK]), _firsts(kills["warm"])))
    return figures


def _phases(side: str, kills: Sequence[Kill]) -> Iterator[Figure]:
    for phase in ("detection_s", "restore_s", "first_epoch_s", "caught_up_s"):
        seconds = [getattr(kill.outage, phase) for kill in kills]
        known = [second for second in seconds if second is not None]
        if known:
            yield _median(f"{side}_{phase}", known)


def _against_a_clean_start(kills: Sequence[Kill]) -> list[Figure]:
    clean = [kill.clean_start_s for kill in kills if kill.clean_start_s is not None]
    over = [kill.outage.first_epoch_s - clean_s for kill, clean_s in zip(kills, clean, strict=True)]
    value = statistics.median(_firsts(kills)) - statistics.median(clean)
    return [_median("clean_start_s", clean), Figure("cold_over_clean_s", value, min(over), max(over))]


def _spark_over_warm(spark: Sequence[float], warm: Sequence[float]) -> Figure:
    """The ratio of the medians; around it the best and the worst that single kills could give."""
    value = statistics.median(spark) / statistics.median(warm)
    return Figure("spark_over_warm", value, min(spark) / max(warm), max(spark) / min(warm))


def _firsts(kills: Sequence[Kill]) -> list[float]:
    return [kill.outage.first_epoch_s for kill in kills]


def _median(name: str, values: Sequence[float]) -> Figure:
    return Figure(name, statistics.median(values), min(values), max(values))
