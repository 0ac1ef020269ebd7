"""A home directory with input, a work directory and sinks, the processes that run on it, and its judge."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, write_files
from flow_under_fire import LATE_US, ROWS_PER_FILE, WINDOW_US, table
from holdfast.core.errors import LedgerError
from holdfast.ledger import schema
from holdfast.ledger.epochs import manifest_of, stage_row
from holdfast.ledger.ledger import reading
from holdfast.verify.damage import is_locked

# What a batch computes of a window; of `middle`, which is within one percent, the exact value.
WINDOW_AGGREGATES = {
    "total": "sum(v)",
    "n": "count(1)",
    "newest": hf.top_k("v", 3, by="id").sql(),
    "listed": hf.collect_list("v", by="id").sql(),
    "exact": "percentile(v, 0.5D)",
}

FLOW = Path(__file__).with_name("flow_under_fire.py")
SECONDS_MAX = 240


class Stand:
    """A home directory with input, a work directory and sinks, and the processes that run on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = 0
        self._started: list[subprocess.Popen[str]] = []

    def feed(self, files: int) -> None:
        write_files(
            self.home / "in", [table(n) for n in range(self.files, self.files + files)], first=self.files
        )
        self.files += files

    def start(self, *arguments: str, fsyncs: Path | None = None, **env: str) -> subprocess.Popen[str]:
        """Run the flow; with `fsyncs`, what it fsyncs is noted there."""
        noting = ["-m", "holdfast.verify.power", str(fsyncs)] if fsyncs else []
        process = subprocess.Popen(
            [sys.executable, *noting, str(FLOW), str(self.home), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FLOW.parent), *sys.path]), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, fsyncs: Path | None = None, **env: str) -> tuple[int, str]:
        """Run to the end; the exit status and all that was said."""
        process = self.start(*arguments, fsyncs=fsyncs, **env)
        out, err = process.communicate(timeout=SECONDS_MAX)
        return process.returncode, out + err

    def head(self, stage: str = "totals") -> int:
        """The last committed epoch, as the ledger has it; -1 before there is one."""
        return self._asked("select head from stages where stage = :name", stage, -1)

    def generation(self) -> int:
        """The flow's generation; 0 before there is one."""
        return self._asked("select generation from flow where name = :name", "under-fire", 0)

    def _asked(self, query: str, name: str, default: int) -> int:
        try:
            found = self.read(query, name=name)
        except LedgerError:
            return default
        return found[0][0] if found else default

    def read(self, query: str, **values: str) -> list[tuple]:
        """What the ledger answers, wherever it is."""
        with reading(self.home / "work") as tx:
            return [tuple(row) for row in tx.execute(sa.text(query), values)]

    def wait_for(self, process: subprocess.Popen[str], *, generation: int, head: int) -> None:
        """Wait until a process has taken the flow and committed up to an epoch."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.generation() < generation or self.head() < head:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the flow makes no progress"
            time.sleep(0.02)

    def processed(self, consumer: str, name: str) -> int:
        """How far a consumer has read an input."""
        query = "select processed from cursors where consumer = :consumer and input = :name"
        found = self.read(query, consumer=consumer, name=name)
        return int(found[0][0]) if found else 0

    def manifests(self, stage: str) -> list[dict]:
        """The manifests of a stage, in order."""
        table = schema.manifests
        with reading(self.home / "work") as tx:
            found = sa.select(table.c.body).where(table.c.stage == stage).order_by(table.c.epoch)
            return list(tx.execute(found).scalars())

    def all_is_out(self) -> bool:
        """Whether every file that was fed has gone through every stage to every sink, and every window is closed that can be."""
        with reading(self.home / "work") as tx:
            found = tx.execute(sa.text("select consumer, input, processed from cursors")).all()
            heads = dict(tx.execute(sa.text("select stage, head from stages")).tuples().all())
            closed = "windows" not in heads or _all_closed(tx)
        ends = {f"channel:{stage}.": head + 1 for stage, head in heads.items()}
        ends["source:rows"] = self.files
        behind = [
            (consumer, name)
            for consumer, name, processed in found
            if processed < next(end for start, end in ends.items() if name.startswith(start))
        ]
        return len(found) >= 10 and not behind and closed

    def is_locked(self) -> bool:
        """Whether a process stands inside a write transaction, of the ledger or of the tables."""
        files = [self.home / "work" / "ledger.db", self.home / "out.db"]
        return any(is_locked(file) for file in files if file.exists())

    def rows(self, table: str) -> list[tuple]:
        """What a table sink holds."""
        with closing(sqlite3.connect(self.home / "out.db", timeout=10)) as database:
            return database.execute(f"select * from {table}").fetchall()

    def events(self) -> list[tuple[str, str]]:
        return self.read("select kind, reason from events order by seq")

    def check(self, spark: SparkSession) -> None:
        """Every sink equals the batch computation over all that was fed."""
        fed = spark.createDataFrame(pa.concat_tables([table(n) for n in range(self.files)])).where(
            "v % 10 != 0"
        )
        few = fed.where("k < 20").select("k", "v")
        assert_same_rows(spark.read.parquet(str(self.home / "few")).drop("epoch"), few)
        assert_same_rows(spark.createDataFrame(self.rows("few"), few.schema), few)
        late = f"ts is null or id % 101 = 0 and id >= {ROWS_PER_FILE}"
        assert_same_rows(spark.read.parquet(str(self.home / "late")).drop("epoch"), fed.where(late))
        unique = fed.where(f"not coalesce({late}, true)").dropDuplicates(["id"])
        aggregates = {"total": "sum(v)", "n": "count(1)", "hi": "max(x)", "mean": "avg(x)"}
        expected = batch(spark, unique, ["k", "s"], aggregates)
        assert_same_rows(last_per_key(spark, self.home / "totals", ["k", "s"]), expected)
        assert_same_rows(spark.createDataFrame(self.rows("totals"), expected.schema), expected)
        timed = unique.selectExpr("*", "window(ts, '2 minutes') as w").selectExpr(
            "id", "s", "v", "w.start as window_start", "w.end as window_end"
        )
        windows = batch(spark, timed, ["s", "window_start", "window_end"], WINDOW_AGGREGATES)
        reached = unique.selectExpr(f"max(unix_micros(ts)) - {LATE_US}").collect()[0][0]
        final = windows.where(f"unix_micros(window_end) <= {reached}").alias("final")
        found = spark.read.parquet(str(self.home / "windows")).drop("epoch").alias("found")
        assert_same_rows(found.drop("middle"), final.drop("exact"))
        near = found.join(final, ["window_start"]).where(
            "found.s <=> final.s and abs(middle / exact - 1) <= 0.01"
        )
        assert near.count() == final.count()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


def _all_closed(tx: sa.Connection) -> bool:
    """Rows move the watermark of the epoch after theirs, which may have nothing to read: it is to come until it has closed."""
    row = stage_row(tx, "windows")
    last = manifest_of(tx, row, row.head) or {}
    reached_us = max(last.get("newest_us", {}).values(), default=0) - LATE_US
    return (last.get("watermark_us") or 0) // WINDOW_US == reached_us // WINDOW_US
