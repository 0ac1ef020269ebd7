"""The SparkSession that a worker runs its epochs on, and the settings that every epoch relies on."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.core.python_path import SAFELY_VARIABLE, for_tasks
from holdfast.spark import daemon
from holdfast.spark.launch import start_jvm
from holdfast.spark.quiet import LOG_LEVEL, quietly

# Static settings: only a session that Holdfast makes itself can have them.
_STATIC = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    LOG_LEVEL: "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.python.worker.reuse": "true",
    # A task that was interrupted holds its core until its Python worker ends.
    "spark.python.task.killTimeout": "200ms",
}

# In local mode all of Spark is in one process: whatever it listens on is for this machine, and asks for a fresh secret.
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.authenticate": "true",
}

# Settings that an epoch's result or speed depends on; set on any session while a flow runs on it.
EPOCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
    "spark.sql.connect.shuffleDependency.fileCleanup.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

# Tasks of an exchange that nobody says more about; it follows the cores that are there (spark/cores.py).
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def make_session(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Start a session of our own, or connect to a server for `sc://` masters."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    _leave_errors_to_us()
    title = f"holdfast-{name}"
    builder = SparkSession.builder.appName(title)
    if master.startswith("sc://"):
        for key, value in conf.items():
            builder = builder.config(key, value)
        return builder.remote(master).getOrCreate()
    builder = builder.master(master)
    with as_file(files("holdfast.spark") / "fair-scheduler.xml") as allocation:
        settings = {**_STATIC, "spark.scheduler.allocation.file": allocation.as_uri(), **conf}
    if master == "local" or master.startswith("local["):
        settings = {**_LOCAL, **settings}
    if master.startswith("local"):
        # An exchange on one machine goes through the page cache: compressing it costs a fifth of a job.
        settings.setdefault("spark.shuffle.compress", "false")
        # Spark starts Python in the current directory; what lies there must not take the place of Python's modules.
        settings.setdefault(f"spark.executorEnv.{SAFELY_VARIABLE}", "1")
        settings.setdefault("spark.executorEnv.PYTHONPATH", for_tasks())
        settings.setdefault(*daemon.SETTING)
    settings.setdefault("spark.sql.warehouse.dir", _warehouse())
    for key, value in settings.items():
        builder = builder.config(key, value)
    with quietly(conf):
        start_jvm({"spark.app.name": title, "spark.master": master, **settings})
        return builder.getOrCreate()


@cache
def _warehouse() -> str:
    """Where Spark puts tables that a flow's own code makes; a name in a shared directory that others know, they could take first."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-warehouse-"))
    atexit.register(_remove_if_empty, directory)
    return str(directory)


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _leave_errors_to_us() -> None:
    """Every error that Spark gives is told once, by whoever ends with it; pyspark would also log it with Java's stack."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def epoch_settings(spark: SparkSession) -> Iterator[None]:
    """Have the settings of epochs in force, and put back what was there before."""
    before = {key: spark.conf.get(key, None) for key in (*EPOCH_SETTINGS, SHUFFLE_PARTITIONS)}
    try:
        for key, value in EPOCH_SETTINGS.items():
            spark.conf.set(key, value)
        check_settings(spark)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def check_settings(spark: SparkSession) -> None:
    """An epoch's layer and output belong together only if Spark takes one result a partition."""
    for key, value in EPOCH_SETTINGS.items():
        if spark.conf.get(key) != value:
            raise PlanError(f"the Spark session refuses {key}={value}", operation="session")


def ansi_mode(spark: SparkSession) -> bool:
    """Whether an overflow is an error, as it is by default, or wraps."""
    return spark.conf.get("spark.sql.ansi.enabled") == "true"
