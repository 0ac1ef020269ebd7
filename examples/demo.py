"""`make demo`: run a flow on generated orders, kill it with kill -9 midway, run it again, check the result.

The worker is a process of its own, as in production; this script only generates input, kills the worker,
starts it again, and compares the sink with an independent batch computation by Spark.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

HOME = Path(os.environ.get("ORDERS_HOME", "demo-work"))
FLOW = Path(__file__).with_name("orders.py")
FILES = 24
ROWS_PER_FILE = 50_000
USERS = 20_000
KILL_AFTER_EPOCH = 8
SEED = 7

console = Console()


def main() -> int:
    """Generate, run, kill, run again, check."""
    shutil.rmtree(HOME, ignore_errors=True)
    generate()
    console.print(f"{FILES} files of {ROWS_PER_FILE:,} orders in {HOME / 'in'}; starting the flow.")
    worker = start()
    wait_for_epoch(worker, KILL_AFTER_EPOCH)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    console.print(
        f"[bold red]kill -9[/] of process {worker.pid} at epoch {head()}. Running the same command again."
    )
    if start().wait() != 0:
        console.print("[bold red]The second run failed.[/]")
        return 1
    return check()


def generate() -> None:
    """Orders of skewed users, some without a user, some with a negative amount."""
    rng = np.random.default_rng(SEED)
    (HOME / "in").mkdir(parents=True)
    start_of_day = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(FILES):
        users = rng.zipf(1.3, ROWS_PER_FILE) % USERS
        seconds = np.sort(rng.integers(0, 3600, ROWS_PER_FILE)) + number * 3600
        table = pa.table(
            {
                "id": pa.array(np.char.add(f"{number}-", np.arange(ROWS_PER_FILE).astype(str))),
                "user": pa.array(np.char.add("user-", users.astype(str)), mask=users == 13),
                "amount": np.round(rng.normal(40, 25, ROWS_PER_FILE), 2),
                "qty": pa.array(rng.integers(1, 5, ROWS_PER_FILE), pa.int32()),
                "ts": pa.array(
                    np.datetime64(start_of_day.replace(tzinfo=None), "us") + seconds * 1_000_000,
                    pa.timestamp("us", "UTC"),
                ),
            }
        )
        pq.write_table(table, HOME / "in" / f"{number:04d}.parquet")


def start() -> subprocess.Popen[bytes]:
    """Start the worker with the command that a user would type."""
    command = [
        Path(sys.executable).with_name("holdfast"),
        "run",
        FLOW,
        "--work-dir",
        HOME / "work",
        "--until-idle",
    ]
    return subprocess.Popen(list(map(str, command)), env={**os.environ, "ORDERS_HOME": str(HOME)})


def wait_for_epoch(worker: subprocess.Popen[bytes], epoch: int) -> None:
    """Wait until the flow has committed an epoch."""
    while head() < epoch:
        if worker.poll() is not None:
            raise SystemExit("the flow ended before it could be killed")
        time.sleep(0.05)


def head() -> int:
    """The last committed epoch of the totals."""
    ledger = HOME / "work" / "ledger.db"
    if not ledger.exists():
        return -1
    with sqlite3.connect(ledger, timeout=10) as connection:
        try:
            row = connection.execute("select head from stages where stage = 'totals'").fetchone()
        except sqlite3.OperationalError:
            return -1
    return row[0] if row else -1


def check() -> int:
    """Compare the newest row per user with a batch computation over all input."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    changes = spark.read.parquet(str(HOME / "totals"))
    newest = changes.groupBy("user").agg(f.max_by(f.struct("total", "n", "top"), "epoch").alias("row"))
    found = newest.select("user", "row.*")
    orders = spark.read.parquet(str(HOME / "in")).where("amount > 0")
    expected = orders.groupBy("user").agg(
        f.expr("sum(amount * qty)").alias("total"), f.count("*").alias("n"), f.max("amount").alias("top")
    )
    wrong, users = differences(found, expected), expected.count()
    twice = changes.groupBy("user", "epoch").count().where("count > 1").count()
    show(found, wrong, twice, users)
    spark.stop()
    return 0 if wrong == twice == 0 else 1


def differences(found: DataFrame, expected: DataFrame) -> int:
    """Users whose row is missing, too many or wrong; sums of doubles may differ in their last bits."""
    left, right = found.alias("l"), expected.alias("r")
    same = "l.n = r.n and l.top <=> r.top and abs(l.total - r.total) <= 1e-9 * abs(r.total)"
    return (
        left.join(right, f.expr("l.user <=> r.user"), "full")
        .where(f"not ({same}) or ({same}) is null")
        .count()
    )


def show(found: DataFrame, wrong: int, twice: int, users: int) -> None:
    """The result, and the verdict."""
    table = Table(title="largest totals")
    for name in ("user", "total", "n", "top"):
        table.add_column(name, justify="left" if name == "user" else "right")
    for row in found.orderBy(f.desc("total")).limit(5).collect():
        table.add_row(str(row["user"]), f"{row['total']:,.2f}", f"{row['n']:,}", f"{row['top']:.2f}")
    console.print(table)
    verdict = "[bold green]exact[/]" if wrong == twice == 0 else "[bold red]WRONG[/]"
    console.print(
        f"{users:,} users checked against a batch computation: {wrong} differ, {twice} rows twice: {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
