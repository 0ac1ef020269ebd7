"""The flow under fire as `holdfast run` finds it: its home and its recovery policies come from the environment."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread

import pyarrow as pa

import holdfast as hf
import ill_worker
from flow_under_fire import SCHEMA, build
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.parquet import ParquetSink

# By name, the policy of every stage that has not the default one.
POLICIES = {
    "warm": {"unique": hf.no_sync(members=2)},
    "mixed": {
        "unique": hf.passive_standby(every=2),
        "totals": hf.active_standby(),
        "windows": hf.upstream_backup(),
        "few": hf.strong_production(),
    },
    "lockstep": {"totals": hf.active_standby(lockstep=True), "unique": hf.active_standby(lockstep=True)},
    "captured": dict.fromkeys(("unique", "totals", "windows", "few"), hf.snapshot("1 second")),
    "cold": {"windows": hf.upstream_backup(), "few": hf.upstream_backup()},
}


def counting(home: Path) -> hf.Flow:
    """A flow whose stages keep nothing for a failure."""
    made = hf.Flow("under-fire", guarantee="at_most_once", recover=hf.gap())
    rows = made.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    rows.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet(str(home / "totals")))
    return made


class HeldBack:
    """A target that makes its sink wait, with epochs in hand: from the epoch on that a file names, as long as it is there."""

    def __init__(self, home: Path, schema: pa.Schema) -> None:
        self._sink = ParquetSink(str(home / "totals"), False, schema)
        self._hold = home / "hold"

    @property
    def place(self) -> object:
        return self._sink.place

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        return self._sink.open(flow, branch, generation, start)

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        while record.epoch >= self._held_from():
            time.sleep(0.05)
        self._sink.publish(record, segments)

    def close(self) -> None:
        self._sink.close()

    def _held_from(self) -> float:
        try:
            return int(self._hold.read_text() or 0)
        except FileNotFoundError:
            return math.inf


def hot(home: Path) -> hf.Flow:
    """A flow with a hot standby and a slow sink, whose workers stand still inside a ledger transaction when told to."""
    made = hf.Flow("under-fire", recover=hf.active_standby())
    rows = made.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    totals = rows.group_by("k").agg(total=hf.sum("v"), n=hf.count()).named("totals")
    totals.to(hf.own_sink(lambda schema: HeldBack(home, schema)))
    Thread(target=_stand_still, args=(home,), daemon=True).start()
    return made


def _stand_still(home: Path) -> None:
    """Take the ledger's write lock and stop, with everything that this process does, once a file with its number is there."""
    while not (home / f"stop-{os.getpid()}").exists():
        time.sleep(0.05)
    with closing(sqlite3.connect(home / "work" / "ledger.db", timeout=60, isolation_level=None)) as ledger:
        ledger.execute("begin immediate")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)  # another thread may take the signal, a little later


_home = Path(os.environ.get("STAND_HOME", "stand"))
_policies = os.environ.get("STAND_POLICIES", "warm")
flow = {"gap": counting, "hot": hot}.get(_policies, lambda home: build(home, POLICIES[_policies]))(_home)
ill_worker.obey()
