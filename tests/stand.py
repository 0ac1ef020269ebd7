"""A home directory with input, a work directory and sinks, the processes that run on it, and its judge."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from batch import assert_same_rows, batch, last_per_key, write_files
from flow_under_fire import LATE_US, ROWS_PER_FILE, table
from holdfast.verify.damage import is_locked

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
        return self._asked("select head from stages where stage = ?", stage, -1)

    def generation(self) -> int:
        """The flow's generation; 0 before there is one."""
        return self._asked("select generation from flow where name = ?", "under-fire", 0)

    def _asked(self, query: str, name: str, default: int) -> int:
        path = self.home / "work" / "ledger.db"
        if not path.exists():
            return default
        with closing(sqlite3.connect(path, timeout=10)) as ledger:
            try:
                row = ledger.execute(query, (name,)).fetchone()
            except sqlite3.OperationalError:
                return default
        return row[0] if row else default

    def wait_for(self, process: subprocess.Popen[str], *, generation: int, head: int) -> None:
        """Wait until a process has taken the flow and committed up to an epoch."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.generation() < generation or self.head() < head:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the flow makes no progress"
            time.sleep(0.02)

    def processed(self, consumer: str, name: str) -> int:
        """How far a consumer has read an input."""
        with closing(sqlite3.connect(self.home / "work" / "ledger.db", timeout=30)) as ledger:
            query = "select processed from cursors where consumer = ? and input = ?"
            row = ledger.execute(query, (consumer, name)).fetchone()
        return int(row[0]) if row else 0

    def manifests(self, stage: str) -> list[dict]:
        """The manifests of a stage, in order."""
        with closing(sqlite3.connect(self.home / "work" / "ledger.db", timeout=30)) as ledger:
            query = "select body from manifests where stage = ? order by epoch"
            return [json.loads(body) for (body,) in ledger.execute(query, (stage,))]

    def all_is_out(self) -> bool:
        """Whether every file that was fed has gone through every stage to every sink."""
        with closing(sqlite3.connect(self.home / "work" / "ledger.db", timeout=30)) as ledger:
            found = ledger.execute("select consumer, input, processed from cursors").fetchall()
            heads = dict(ledger.execute("select stage, head from stages").fetchall())
        ends = {f"channel:{stage}.": head + 1 for stage, head in heads.items()}
        ends["source:rows"] = self.files
        behind = [
            (consumer, name)
            for consumer, name, processed in found
            if processed < next(end for start, end in ends.items() if name.startswith(start))
        ]
        return len(found) >= 10 and not behind

    def is_locked(self) -> bool:
        """Whether a process stands inside a write transaction, of the ledger or of the tables."""
        return any(is_locked(self.home / name) for name in ("work/ledger.db", "out.db"))

    def rows(self, table: str) -> list[tuple]:
        """What a table sink holds."""
        with closing(sqlite3.connect(self.home / "out.db", timeout=10)) as database:
            return database.execute(f"select * from {table}").fetchall()

    def events(self) -> list[tuple[str, str]]:
        with sqlite3.connect(self.home / "work" / "ledger.db") as ledger:
            return ledger.execute("select kind, reason from events order by seq").fetchall()

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
            "s", "v", "w.start as window_start", "w.end as window_end"
        )
        windows = batch(
            spark, timed, ["s", "window_start", "window_end"], {"total": "sum(v)", "n": "count(1)"}
        )
        reached = unique.selectExpr(f"max(unix_micros(ts)) - {LATE_US}").collect()[0][0]
        final = windows.where(f"unix_micros(window_end) <= {reached}")
        assert_same_rows(spark.read.parquet(str(self.home / "windows")).drop("epoch"), final)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
