"""The policies' job on plain Structured Streaming, in a process that can be killed and started again.

`python -m holdfast.bench.spark_job INPUTS CHECKPOINT` runs it, with RocksDB and changelog checkpoints, until it is
killed. A batch is committed when its file is in the checkpoint's `commits/`, and the time of that file says when.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.bench.command import POLL_S, WAIT_S_MAX
from holdfast.bench.cost import tree
from holdfast.bench.feed import Feed, Pool
from holdfast.bench.outage import Commit
from holdfast.bench.policy_job import LATE, SCHEMA, WINDOW
from holdfast.core.errors import HoldfastError
from holdfast.core.python_path import SAFELY


def main(inputs: str, checkpoint: str) -> None:
    """Run the stream."""
    from pyspark.sql import functions as F  # noqa: N812

    from holdfast.bench.peers_spark import ROCKSDB_PROVIDER, session

    state = "spark.sql.streaming.stateStore"
    spark = session(
        {
            f"{state}.providerClass": ROCKSDB_PROVIDER,
            f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        }
    )
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(inputs)
    windows = rows.withWatermark("ts", LATE).groupBy(F.window("ts", WINDOW), "k")
    results = windows.agg(F.sum("v").alias("s"), F.count(F.lit(1)).alias("n"))
    writer = results.writeStream.format("noop").outputMode("append")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


class SparkJob:
    """The process of the stream, on a home directory of its own."""

    def __init__(self, home: Path, pool: Pool) -> None:
        self.feed = Feed(pool, home / "in")
        self.feed.keep_ahead(0)
        self._checkpoint = home / "checkpoint"
        self._log = home / "log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [str(self.feed.directory), str(self._checkpoint)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *SAFELY, "-m", __name__, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def commits(self) -> list[Commit]:
        """The batches whose commits are still kept, which are a hundred or more."""
        names = [path for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit()]
        found = [Commit(int(path.name), at_ms) for path in names if (at_ms := _modified_ms(path))]
        return sorted(found, key=lambda commit: commit.epoch)

    def wait(self, what: str, condition: Callable[[list[Commit]], bool]) -> list[Commit]:
        """Keep feeding until the commits are such."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition(commits := self.commits()):
            self.feed.keep_ahead(commits[-1].epoch + 1 if commits else 0)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise HoldfastError(
                    f"Spark did not come to {what}: {self._log.read_text()[-2_000:]}", operation="bench"
                )
            time.sleep(POLL_S)
        return commits

    def kill(self) -> float:
        """kill -9 the driver, its JVM included, which could commit another batch; when, in milliseconds."""
        pids = tree(self.process.pid)
        at_ms = time.time_ns() / 1e6
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        self.process.wait()
        return at_ms

    def again(self) -> None:
        """Start it once more, on the same checkpoint."""
        self.process = self._start()

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.kill()


def _modified_ms(path: Path) -> float | None:
    """When a file was written; None if it has been deleted since it was listed, as old commits are."""
    try:
        return path.stat().st_mtime_ns / 1e6
    except FileNotFoundError:
        return None


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone by now."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def streaming(home: Path, pool: Pool) -> Iterator[SparkJob]:
    """The stream for as long as it is needed, on a directory that is made for it."""
    home.mkdir(parents=True)
    job = SparkJob(home, pool)
    try:
        yield job
    finally:
        job.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
