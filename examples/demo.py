"""`make demo`: run a flow on generated orders, kill it with kill -9 midway, run it again, check the result.

The flow runs in processes of its own, as in production; this script only kills them, starts the flow again, and compares
what it left in its two sinks with an independent batch computation by Spark over the same rows.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
from orders import HOME, ORDERS, VISITS, flow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from holdfast.flow.generate import GenerateSource
from holdfast.ledger.roster import roster
from holdfast.sources.contract import NOTHING, Limits
from holdfast.sources.generate import Generate

FLOW = Path(__file__).with_name("orders.py")
KILL_AFTER_EPOCH = 4

console = Console()


def main() -> int:
    """Run, kill, run again, check."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    console.print(
        f"Flow {flow.name!r}: dedup, windows and a join, into a directory and a table. Starting it."
    )
    supervisor = start()
    wait_for_epoch(supervisor, KILL_AFTER_EPOCH)
    killed = kill_all(supervisor)
    console.print(
        f"[bold red]kill -9[/] of processes {killed} at epoch {head()}. Running the same command again."
    )
    if start().wait() != 0:
        console.print("[bold red]The second run failed.[/]")
        return 1
    return check()


def start() -> subprocess.Popen[bytes]:
    """Start the flow with the command that a user would type."""
    command = [
        Path(sys.executable).with_name("holdfast"),
        "run",
        FLOW,
        "--work-dir",
        HOME / "work",
        "--drain",
    ]
    return subprocess.Popen(list(map(str, command)), env={**os.environ, "ORDERS_HOME": str(HOME)})


def wait_for_epoch(supervisor: subprocess.Popen[bytes], epoch: int) -> None:
    """Wait until the flow has committed an epoch."""
    while head() < epoch:
        if supervisor.poll() is not None:
            raise SystemExit("the flow ended before it could be killed")
        time.sleep(0.05)


def kill_all(supervisor: subprocess.Popen[bytes]) -> str:
    """Kill whatever runs the flow: the supervisor first, as it would replace its workers."""
    supervisor.kill()
    supervisor.wait()
    groups = roster(HOME / "work")["groups"].values()
    workers = [worker["process"]["pid"] for group in groups for worker in group["workers"] if worker["lives"]]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return ", ".join(map(str, [supervisor.pid, *workers]))


def head() -> int:
    """The last committed epoch of the windows."""
    ledger = HOME / "work" / "ledger.db"
    if not ledger.exists():
        return -1
    with sqlite3.connect(ledger, timeout=10) as connection:
        try:
            row = connection.execute("select head from stages where stage = 'minutes'").fetchone()
        except sqlite3.OperationalError:
            return -1
    return row[0] if row else -1


def check() -> int:
    """Compare both sinks with a batch computation over all input."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "4")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    unique = generated(spark, ORDERS).dropDuplicates(["id"]).cache()
    minutes = unique.groupBy("user", f.window("ts", "1 minute").alias("w")).agg(
        f.expr("sum(amount * qty)").alias("spent"), f.count("*").alias("orders")
    )
    led = unique.alias("o").join(
        generated(spark, VISITS).alias("v"),
        f.expr("o.user = v.user and v.ts between o.ts - interval 10 seconds and o.ts"),
    )
    pages = led.groupBy("page").agg(f.count("*").alias("orders"), f.sum("amount").alias("spent"))
    windows = spark.read.parquet(str(HOME / "minutes")).drop("epoch", "window_end")
    wrong = {
        "windows": differences(
            windows,
            minutes.selectExpr("user", "w.start as window_start", "spent", "orders"),
            ["user", "window_start"],
        ),
        "pages": differences(spark.createDataFrame(table()), pages, ["page"]),
    }
    show(wrong, {"windows": minutes.count(), "pages": pages.count()})
    spark.stop()
    return 1 if any(wrong.values()) else 0


def generated(spark: SparkSession, description: GenerateSource) -> DataFrame:
    """All rows of a generator at once."""
    source = Generate("all", description)
    return source.read(spark, source.next(NOTHING, Limits()))


def table() -> pa.Table:
    """What the flow left in its table."""
    with sqlite3.connect(HOME / "pages.db") as database:
        rows = database.execute("select page, orders, spent from pages order by orders desc").fetchall()
    return pa.table(dict(zip(("page", "orders", "spent"), zip(*rows, strict=True), strict=True)))


def differences(found: DataFrame, expected: DataFrame, keys: list[str]) -> int:
    """Rows that are missing, too many or wrong; sums of doubles may differ in their last bits."""
    left, right = found.alias("l"), expected.alias("r")
    same = "l.orders = r.orders and abs(l.spent - r.spent) <= 1e-9 * abs(r.spent)"
    both = left.join(right, f.expr(" and ".join(f"l.{key} <=> r.{key}" for key in keys)), "full")
    return both.where(f"not ({same}) or ({same}) is null").count() + found.count() - found.distinct().count()


def show(wrong: dict[str, int], rows: dict[str, int]) -> None:
    """The result, and the verdict."""
    pages = Table(title="pages visited in the 10 seconds before an order")
    for name in ("page", "orders", "spent"):
        pages.add_column(name, justify="left" if name == "page" else "right")
    for row in table().slice(0, 5).to_pylist():
        pages.add_row(row["page"], f"{row['orders']:,}", f"{row['spent']:,.2f}")
    console.print(pages)
    verdict = "[bold red]WRONG[/]" if any(wrong.values()) else "[bold green]exact[/]"
    told = ", ".join(f"{rows[name]:,} {name}: {number} differ" for name, number in wrong.items())
    console.print(f"Checked against a batch computation by Spark: {told}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
