"""How long a snapshot takes when epochs queue up before a slow stage: aligned it waits for all of them, unaligned not.

A fast stage hands its rows to one that takes longer over each row than they take to come, so that the channel between
them fills. When enough epochs are unread, a snapshot is asked for; the run ends when it is complete.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.bench.data import SCHEMA, write_numbered
from holdfast.bench.holdfast_side import TASKS
from holdfast.flow.aggregates import count
from holdfast.flow.aggregates import sum as total
from holdfast.flow.endpoints import discard, files
from holdfast.flow.own import Context
from holdfast.flow.policies import snapshot
from holdfast.ledger import epochs, snapshots
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.flow import Flow
from holdfast.runtime.progress import Progress

# What the slow stage takes over a row: several times as long as the fast one takes to hand it on.
SLOW_S_A_ROW = 0.002

ROWS = 1_000
FILES = 400


@dataclass(frozen=True)
class Taken:
    """One snapshot under load."""

    mode: str
    seconds: float
    queued: int  # epochs that the slow stage had not read when it began
    in_flight: int  # of these, epochs that became part of the snapshot


class _Enough(Exception):
    pass


def taken_under_load(spark: SparkSession, home: Path, mode: str, *, queued: int, seed: int) -> Taken:
    """Run the flow until so many epochs are queued, take a snapshot, and stop."""
    with TemporaryDirectory(prefix="queue-", dir=home) as name:
        place = Path(name)
        for number in range(FILES):
            rng = np.random.default_rng([seed, number])
            rows = {"k": rng.permutation(ROWS), "v": rng.random(ROWS)}
            write_numbered(place / "in", number, pa.table(rows))
        watch = _Watch(place / "work", queued)
        try:
            _flow(place / "in", mode).run(place / "work", spark=spark, tasks=TASKS, observe=watch)
        except _Enough:
            return watch.found(mode)
    raise RuntimeError("the flow ended before a snapshot was complete")


def _flow(inputs: Path, mode: str) -> Flow:
    flow = Flow("bench", recover=snapshot("1 day", mode, timeout="1 hour"))
    rows = flow.source("rows", files(str(inputs), schema=SCHEMA, max_files_per_epoch=1))
    fast = rows.group_by("k").agg(s=total("v"), n=count()).named("fast")
    slow = fast.stateful(slowly, by=["k"], state="s double", output="k long, s double").named("slow")
    slow.to(discard())
    return flow


def slowly(rows: pa.Table, state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table]:
    """Keep the last sum of every key, and take time over it."""
    time.sleep(SLOW_S_A_ROW * rows.num_rows)
    last = rows.group_by("k").aggregate([("s", "max")]).rename_columns(["k", "s"])
    return last, last


class _Watch:
    """Asks for a snapshot when the queue is long enough, and ends the run when it is complete."""

    def __init__(self, work: Path, queued: int) -> None:
        self._work = work
        self._wanted = queued
        self._queued = 0
        self._number: int | None = None

    def __call__(self, progress: Progress) -> None:
        with closing(Ledger(self._work)) as ledger:
            if self._number is None:
                self._ask(ledger)
                return
            with ledger.read() as tx:
                found = snapshots.all_snapshots(tx, *snapshots.COMPLETE)
        if any(one.number == self._number for one in found):
            raise _Enough

    def found(self, mode: str) -> Taken:
        with closing(Ledger(self._work)) as ledger, ledger.read() as tx:
            [one] = [one for one in snapshots.all_snapshots(tx) if one.number == self._number]
        assert one.begun_ms is not None
        assert one.committed_ms is not None
        in_flight = one.parts["fast"].epoch + 1 - one.parts["slow"].positions["channel:fast.out"]
        return Taken(mode, (one.committed_ms - one.begun_ms) / 1000, self._queued, in_flight)

    def _ask(self, ledger: Ledger) -> None:
        with ledger.unfenced_write() as tx:
            if not epochs.all_registered(tx, ["fast", "slow"]):
                return
            head = epochs.stage_row(tx, "fast").head
            self._queued = head + 1 - ledger_inputs.processed(tx, "stage:slow", "channel:fast.out")
            if self._queued >= self._wanted:
                self._number = snapshots.ask(tx, None)
