"""What snapshots cost an epoch as the state grows: a state is filled once, and run on under every mode from a copy.

Every run reads the same files, each of which touches the same number of random keys, as fast as it can. An epoch counts
from one commit to the next, so that whatever delays it is in it; its latency counts from its plan until a sink has been
given its rows, which under snapshots is when one covers it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.bench import data
from holdfast.bench.growth import FILLING_ROWS, WARMUP_EPOCHS
from holdfast.bench.holdfast_side import TASKS, commit_to_commit, running_aggregate
from holdfast.flow.endpoints import files, foreach
from holdfast.flow.policies import Policy, no_sync, snapshot
from holdfast.ledger import epochs, snapshots
from holdfast.ledger import files as ledger_files
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.flow import Flow
from holdfast.runtime.progress import StageProgress

NO_SYNC = "no_sync"
EVERY = "1 second"

# A key of the running aggregate takes about so much on the disk.
STATE_BYTES_A_KEY = 34


@dataclass(frozen=True)
class Cost:
    """One run on one state."""

    mode: str
    state_bytes: int
    epoch_s: list[float]
    latency_s: list[float]
    snapshots: int
    snapshot_bytes: int  # of all snapshots together

    @property
    def stall(self) -> float:
        """How much longer than usual an epoch takes at its worst."""
        return p99(self.epoch_s) / statistics.median(self.epoch_s)


class FilledState:
    """A work directory with a state of a given size, to run on from."""

    def __init__(
        self, spark: SparkSession, place: Path, keys: int, touched: int, epochs: int, seed: int
    ) -> None:
        self._spark = spark
        self._place = place
        self._filling = data.filling_files(place / "in", keys=keys, rows=FILLING_ROWS, seed=seed)
        self._run(place / "filled", no_sync(), [])
        for number in range(WARMUP_EPOCHS + epochs):
            data.touching_file(place / "in", self._filling + number, keys=keys, touched=touched, seed=seed)

    def cost(self, mode: str) -> Cost:
        """Run the epochs that count under a mode, from a copy of the state."""
        work = self._place / "work"
        _copied(self._place / "filled", work)
        published: list[float] = []
        try:
            policy = no_sync() if mode == NO_SYNC else snapshot(EVERY, mode)
            done = self._run(work, policy, published)
            return self._found(work, mode, done, published)
        finally:
            shutil.rmtree(work)

    def _found(self, work: Path, mode: str, done: StageProgress, published: Sequence[float]) -> Cost:
        samples = done.samples
        latency = [at - (s.committed_s - s.seconds) for s, at in zip(samples, published, strict=True)]
        with closing(Ledger(work)) as ledger, ledger.read() as tx:
            # The first stands for what was there before.
            taken = [one for one in snapshots.all_snapshots(tx) if one.is_complete][1:]
            row = epochs.stage_row(tx, "totals")
            spine, _ = ledger_files.cover(ledger_files.live_layers(tx, row), row.head)
        return Cost(
            mode,
            sum(layer.bytes for layer in spine),
            commit_to_commit(done)[WARMUP_EPOCHS:],
            latency[WARMUP_EPOCHS:],
            len(taken),
            sum(sum(one.bytes.values()) for one in taken),
        )

    def _run(self, work: Path, policy: Policy, published: list[float]) -> StageProgress:
        def note(rows: pa.Table, epoch: int, token: str) -> None:
            published.append(time.monotonic())

        flow = Flow("bench", recover=policy)
        source = files(str(self._place / "in"), schema=data.SCHEMA, max_files_per_epoch=1)
        running_aggregate(flow.source("rows", source)).to(foreach(note, idempotent=True))
        [done] = flow.run(work, until_idle=True, spark=self._spark, tasks=TASKS).stages.values()
        return done


def p99(samples: Sequence[float]) -> float:
    """What one in a hundred lies above."""
    return statistics.quantiles(samples, n=100, method="inclusive")[98]


def _copied(source: Path, target: Path) -> None:
    """Files of a state never change, so a copy shares them; the ledger is copied."""

    def copy(file: str, to: str) -> str:
        if Path(file).is_relative_to(source / "data"):
            os.link(file, to)
            return to
        return str(shutil.copy2(file, to))

    shutil.copytree(source, target, copy_function=copy)
