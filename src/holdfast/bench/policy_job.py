"""The job of the benchmarks of recovery policies: one windowed stage that every policy is allowed for.

Sums and counts per key in tumbling windows of ten seconds. Event time advances ten seconds a file and lateness is
half a minute, so that after the first files every epoch opens one window and closes another: epochs are alike.

Flow files that a benchmark writes import this module, and so do processes that only plan: it imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.flow.aggregates import count, sum
from holdfast.flow.endpoints import discard, files
from holdfast.flow.policies import (
    Policy,
    Standby,
    active_standby,
    gap,
    no_sync,
    passive_standby,
    strong_production,
    upstream_backup,
)
from holdfast.runtime.flow import Flow

SCHEMA = "k long, v double, ts timestamp"
STAGE = "windows"
SOURCE = "rows"

WINDOW = "10 seconds"
LATE = "30 seconds"

# Event time of one file.
SPAN_S = 10

# Files after which as many windows close as open.
FILLING = 5

ROWS = 10_000
KEYS = 50_000
QUICK_ROWS = 500
QUICK_KEYS = 100


@dataclass(frozen=True)
class Case:
    """A policy with the choices that it is measured with."""

    name: str  # in the figures of `bench policies`: <name>_over_gap
    call: str  # as a user writes it
    make: Callable[[], Policy]
    recovery: str  # in the figures of `bench recovery`: <recovery>_first_epoch_s

    @property
    def standby(self) -> Standby:
        return self.make().standby

    @property
    def alone(self) -> bool:
        """Whether one process is all that it needs."""
        return self.standby is Standby.NONE


CASES = {
    case.name: case
    for case in (
        Case("gap", "gap()", gap, "gap"),
        Case("no_sync", "no_sync()", no_sync, "cold"),
        Case("strong_production", "strong_production()", strong_production, "strong_production"),
        Case("upstream_backup", "upstream_backup()", upstream_backup, "upstream_backup"),
        Case("no_sync_warm", "no_sync(members=2)", lambda: no_sync(members=2), "warm"),
        Case(
            "passive_standby", "passive_standby(every=5)", lambda: passive_standby(every=5), "passive_standby"
        ),
        Case("active_standby", "active_standby()", active_standby, "hot"),
    )
}


def flow_under(name: str, inputs: str | Path) -> Flow:
    """The job under the policy of a case, over the files of a directory, one an epoch."""
    policy = CASES[name].make()
    flow = Flow("bench", guarantee="exactly_once" if policy.precise else "at_most_once", recover=policy)
    rows = flow.source(SOURCE, files(str(inputs), schema=SCHEMA, max_files_per_epoch=1))
    windows = rows.group_by("k").window("ts", tumbling=WINDOW, late=LATE)
    windows.agg(s=sum("v"), n=count()).named(STAGE).to(discard())
    return flow


def flow_text(name: str, inputs: Path) -> str:
    """The same as a file that `holdfast run` is given."""
    return (
        "from holdfast.bench.policy_job import flow_under\n\n"
        f"flow = flow_under({name!r}, {str(inputs.resolve())!r})\n"
    )
