"""`holdfast bench policies`: what every recovery policy costs while nothing fails, relative to `gap()`.

The job is that of policy_job.py. Policies that need one process run in one session, each in pairs with `gap()` whose
order turns: a ratio is of two runs that are neighbours in time. A run starts from an empty state, and its first epochs,
until windows close, are not counted. Policies with a second process run as `holdfast run`, in rounds with `gap()` run
the same way, and are measured when the standby is warm (or hot); both processes share the machine's cores.

Time is the median from commit to commit; latency is that of one epoch, from its plan to its commit. CPU seconds and
bytes written are of the whole tree of processes (cost.py): driver, JVM and Spark's Python workers, and where there is
one the supervisor and the standby. In one session they are over a whole run, its uncounted epochs included.

The interval of a figure is that of the ratios of single pairs. Of nine pairs it goes from the second smallest to the
second largest, which holds the median of such pairs in 96 of 100 cases; of fewer it is all of them.

What it does not show: more than one machine, state that is large, rates below what the flow can take.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from holdfast.bench import peers_spark, policy_job
from holdfast.bench.command import MASTER, commanded
from holdfast.bench.cost import Cost, spent
from holdfast.bench.data import DataSet, default_directory, scratch
from holdfast.bench.event_data import key_set
from holdfast.bench.feed import AHEAD, Pool
from holdfast.bench.holdfast_side import TASKS, commit_to_commit
from holdfast.bench.policy_job import CASES, Case, flow_under
from holdfast.bench.report import Bar, Figure, Line, Report, spread
from holdfast.bench.rounds import measuring, turned

BASE = CASES["gap"]

BARS = {
    "no_sync_over_gap": Bar("at most", 1.10),
    "no_sync_cpu_over_gap": Bar("at most", 1.10),
}

# From so many pairs on, the outermost two are left out of an interval.
PAIRS_TO_TRIM = 9


@dataclass(frozen=True)
class Effort:
    """How much of the measurement to run."""

    rows: int
    keys: int
    epochs: int  # of a run in one session that count
    default_pairs: int  # of the default policy, which has a bar
    pairs: int  # of every other
    rounds: int  # of `holdfast run`
    age: int  # epochs there after which every JVM has compiled what it will, with a standby to wait for or without
    settle: int  # epochs there between the moment that all is ready and the first that counts
    steady: int  # epochs there that count
    files: int  # made up front for it


FULL = Effort(policy_job.ROWS, policy_job.KEYS, 15, 9, 3, 3, 150, 20, 40, 500)
QUICK = Effort(policy_job.QUICK_ROWS, policy_job.QUICK_KEYS, 2, 1, 1, 1, 1, 2, 3, 30)


@dataclass(frozen=True)
class Sample:
    """One run of one policy."""

    seconds: list[float]  # from commit to commit
    latencies: list[float]  # from plan to commit
    rows: int  # that the cost is of
    cost: Cost

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cpu_s_per_m_rows(self) -> float:
        return self.cost.cpu_s / self.rows * 1e6

    @property
    def bytes_per_m_rows(self) -> float:
        return self.cost.written_bytes / self.rows * 1e6


@dataclass
class Measured:
    """The runs of one policy, and of `gap()` beside each."""

    case: Case
    own: list[Sample] = field(default_factory=list)
    base: list[Sample] = field(default_factory=list)

    def ratios(self, measure: Callable[[Sample], float]) -> list[float]:
        """Pair by pair, the policy's over that of `gap()`."""
        return [measure(own) / measure(base) for own, base in zip(self.own, self.base, strict=True)]


def run(
    json_path: Path | None = None,
    *,
    seed: int = 1,
    cases: Sequence[str] = tuple(CASES),
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    effort = QUICK if quick else FULL
    others = [CASES[name] for name in cases if CASES[name] != BASE]
    home = directory or default_directory()
    parameters = {
        **asdict(effort),
        "window": policy_job.WINDOW,
        "late": policy_job.LATE,
        "span_s": policy_job.SPAN_S,
        "uncounted": policy_job.FILLING,
        "ahead": AHEAD,
        "policies": {case.name: case.call for case in (BASE, *others)},
        "session": peers_spark.SESSION_CONF,
        "master": MASTER,
        "quick": quick,
    }
    report = Report("policies", seed, parameters, bars={} if quick else BARS)
    # First, because the session would take memory from the processes that are measured here.
    guarded = measured_guarded(home, [case for case in others if not case.alone], effort, seed)
    with measuring(report, spark, json_path) as session:
        alone = measured_alone(session, home, [case for case in others if case.alone], effort, seed)
        add_to(report, "one session", "gap", alone, effort.rows)
        add_to(report, "holdfast run", "gap_as_command", guarded, effort.rows)
    return report


def measured_alone(
    spark: SparkSession, home: Path, cases: Sequence[Case], effort: Effort, seed: int
) -> list[Measured]:
    """Each policy in pairs with `gap()`, after a run of each that only warms the session."""
    if not cases:
        return []
    made = key_set(
        home,
        keys=effort.keys,
        rows=effort.rows,
        span_s=policy_job.SPAN_S,
        warmup=policy_job.FILLING,
        epochs=effort.epochs,
        seed=seed,
    )
    for case in (BASE, *cases):
        in_session(spark, made, case)
    found = []
    for case in cases:
        pairs = effort.default_pairs if case.name == "no_sync" else effort.pairs
        measured = Measured(case)
        for number in range(pairs):
            taken = {one.name: in_session(spark, made, one) for one in _ordered([BASE, case], number)}
            measured.own.append(taken[case.name])
            measured.base.append(taken[BASE.name])
            _tell(f"pair {number + 1}", case, taken[case.name], taken[BASE.name])
        found.append(measured)
    return found


def in_session(spark: SparkSession, made: DataSet, case: Case) -> Sample:
    """The job under a policy over all files, from an empty state."""
    with scratch(made.files) as work_dir:
        before = spent(os.getpid())
        flow = flow_under(case.name, made.directory)
        [done] = flow.run(work_dir, until_idle=True, spark=spark, tasks=TASKS).stages.values()
        cost = spent(os.getpid()).since(before)
    latencies = [sample.seconds for sample in done.samples if sample.rows]
    counted = slice(made.uncounted, None)
    return Sample(commit_to_commit(done)[counted], latencies[counted], done.rows, cost)


def measured_guarded(home: Path, cases: Sequence[Case], effort: Effort, seed: int) -> list[Measured]:
    """Each policy as `holdfast run`, in rounds with `gap()`."""
    if not cases:
        return []
    found = [Measured(case) for case in cases]
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="policies-", dir=home) as name:
        pool = Pool(Path(name) / "pool", effort.keys, effort.rows, policy_job.SPAN_S, seed)
        pool.fill(effort.files)
        for number in range(effort.rounds):
            taken = {
                case.name: under_guard(Path(name) / "run", pool, case, effort)
                for case in _ordered([BASE, *cases], number)
            }
            for measured in found:
                measured.own.append(taken[measured.case.name])
                measured.base.append(taken[BASE.name])
                _tell(f"round {number + 1}", measured.case, measured.own[-1], measured.base[-1])
    return found


def under_guard(home: Path, pool: Pool, case: Case, effort: Effort) -> Sample:
    """The job under a policy as `holdfast run`, when all its processes do what they do for long."""
    with commanded(home, case, pool) as command:
        command.wait(f"{case.name}: epoch {effort.age}", lambda seen: seen.head >= effort.age)
        first = command.settle(effort.settle)
        before = spent(command.process.pid)
        last = command.wait("the epochs that count", lambda seen: seen.head >= first.head + effort.steady)
        cost = spent(command.process.pid).since(before)
        commits = [commit for commit in command.commits(first.head) if commit.epoch <= last.head]
    shutil.rmtree(home)
    seconds = [(later.at_ms - earlier.at_ms) / 1000 for earlier, later in pairwise(commits)]
    latencies = [commit.seconds for commit in commits[1:] if commit.seconds is not None]
    return Sample(seconds, latencies, pool.rows * len(seconds), cost)


def _ordered(cases: Sequence[Case], number: int) -> list[Case]:
    return [CASES[name] for name in turned([case.name for case in cases], number)]


def _tell(which: str, case: Case, own: Sample, base: Sample) -> None:
    Console(stderr=True).print(
        f"{which} {case.name}: {own.median_s:.3f} s an epoch, {own.median_s / base.median_s:.2f} of gap's,"
        f" CPU {own.cpu_s_per_m_rows / base.cpu_s_per_m_rows:.2f}"
    )


def add_to(report: Report, size: str, base: str, found: Sequence[Measured], rows: int) -> None:
    """Put a line for every policy, all its samples and its figures into the report; `gap()` is named `base`."""
    if not found:
        return
    # Several policies may have been compared with the same runs of it.
    beside = {id(sample): sample for measured in found for sample in measured.base}
    sides = {base: list(beside.values()), **{measured.case.name: measured.own for measured in found}}
    for name, samples in sides.items():
        seconds = [second for sample in samples for second in sample.seconds]
        report.lines.append(Line(size, name, spread(seconds), rows))
    report.figures += [figure for measured in found for figure in ratios_of(measured)]
    report.figures += [figure for name, samples in sides.items() for figure in costs_of(name, samples)]
    report.runs += [
        {"size": size, "policy": measured.case.name, "pair": number, "own": asdict(own), "gap": asdict(gap)}
        for measured in found
        for number, (own, gap) in enumerate(zip(measured.own, measured.base, strict=True))
    ]


def ratios_of(measured: Measured) -> list[Figure]:
    """Time and CPU seconds over those of `gap()`: the median of the pairs, and its interval."""
    name = measured.case.name
    time = measured.ratios(lambda sample: sample.median_s)
    cpu = measured.ratios(lambda sample: sample.cpu_s_per_m_rows)
    return [_median(f"{name}_over_gap", time), _median(f"{name}_cpu_over_gap", cpu)]


def costs_of(name: str, samples: Sequence[Sample]) -> list[Figure]:
    """What a policy takes, by itself."""
    latencies = sorted(second for sample in samples for second in sample.latencies)
    shares = [latencies[math.ceil(share * len(latencies)) - 1] for share in (0.5, 0.99)]
    return [
        _median(f"{name}_cpu_s_per_m_rows", [sample.cpu_s_per_m_rows for sample in samples]),
        _median(f"{name}_written_mb_per_m_rows", [sample.bytes_per_m_rows / 1e6 for sample in samples]),
        *(
            Figure(f"{name}_{label}_s", value, latencies[0], latencies[-1])
            for label, value in zip(("p50", "p99"), shares, strict=True)
        ),
    ]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the ratios of single pairs lie: of nine or more without the outermost two.

    >>> interval([1.0, 9.0, 2.0]), interval([1, 2, 3, 4, 5, 6, 7, 8, 9])
    ((1.0, 9.0), (2, 8))
    """
    ordered = sorted(ratios)
    trimmed = ordered[1:-1] if len(ordered) >= PAIRS_TO_TRIM else ordered
    return trimmed[0], trimmed[-1]


def _median(name: str, values: Sequence[float]) -> Figure:
    return Figure(name, statistics.median(values), *interval(values))
