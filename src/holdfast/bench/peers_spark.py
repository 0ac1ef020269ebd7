"""What users would pick instead: Structured Streaming with its own state stores, and the job without state.

Every side here is a function of a session, the files and their schema that returns the seconds of each
file's epoch. The streams measure themselves (`durationMs.triggerExecution`: planning, the job, the state
store and the logs of the checkpoint), because a trigger is the whole of what an epoch costs them; the time
between triggers, which is small, is theirs for free.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench.data import scratch
from holdfast.spark.session import epoch_settings

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DEFAULT_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"

TASKS = 2
STREAM_SECONDS_MAX = 1_800
PROGRESS_UPDATES_MAX = 10_000

SESSION_CONF = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_UPDATES_MAX),
}


def session(conf: dict[str, str] | None = None) -> SparkSession:
    """The session that all sides of a benchmark share: two cores, one JVM, equally warm for all."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("holdfast-bench")
    for name, value in {**SESSION_CONF, **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def spark_rocksdb(spark: SparkSession, files: Sequence[Path], schema: str) -> list[float]:
    """Structured Streaming with RocksDB and changelog checkpoints, its advised setting for large state."""
    return _stream(spark, files, schema, {"rocksdb.changelogCheckpointing.enabled": "true"}, ROCKSDB_PROVIDER)


def spark_default(spark: SparkSession, files: Sequence[Path], schema: str) -> list[float]:
    """Structured Streaming with the provider it has when nobody chooses: maps on the heap, delta files."""
    return _stream(spark, files, schema, {}, DEFAULT_PROVIDER)


def stateless(spark: SparkSession, files: Sequence[Path], schema: str) -> list[float]:
    """The same read, settings, exchange and groupBy, and a `mapInArrow` that only counts: Spark's own cost."""
    with epoch_settings(spark):
        return [_timed_job(spark, file, schema) for file in files]


def _timed_job(spark: SparkSession, file: Path, schema: str) -> float:
    started = time.perf_counter()
    _stateless_job(spark.read.schema(schema).parquet(str(file))).collect()
    return time.perf_counter() - started


def _stateless_job(rows: DataFrame) -> DataFrame:
    part = F.expr("cast(shiftrightunsigned(h, 63) as int)")
    return (
        rows.withColumn("h", F.xxhash64("k", F.isnull("k")))
        .withColumn("part", part)
        .repartitionById(TASKS, F.col("part"))
        .groupBy("part", "h", "k")
        .agg(F.sum("v").alias("total"), F.count(F.lit(1)).alias("n"))
        .mapInArrow(_count_rows, "n long")
    )


def _count_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"n": pa.array([rows], pa.int64())})


def _stream(
    spark: SparkSession, files: Sequence[Path], schema: str, store_conf: dict[str, str], provider: str
) -> list[float]:
    """Run the running aggregate over the files' directory, a file a trigger, from an empty checkpoint."""
    session_of_its_own = spark.newSession()
    for name, value in {"providerClass": provider, **store_conf}.items():
        session_of_its_own.conf.set(f"spark.sql.streaming.stateStore.{name}", value)
    rows = (
        session_of_its_own.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(files[0].parent))
    )
    totals = rows.groupBy("k").agg(F.sum("v").alias("total"), F.count(F.lit(1)).alias("n"))
    writer = totals.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    with scratch(files) as checkpoint:
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            if not query.awaitTermination(STREAM_SECONDS_MAX):
                raise TimeoutError(f"the stream did not end within {STREAM_SECONDS_MAX} s")
            progress = [json.loads(update.json) for update in query.recentProgress]
        finally:
            query.stop()
            _forget_state(spark)
    return _seconds_per_file(progress, len(files))


def _seconds_per_file(progress: Sequence[dict[str, Any]], files: int) -> list[float]:
    """One update a file, in the order of the files; anything else would compare different work."""
    epochs = [update for update in progress if update["numInputRows"] > 0]
    if len(epochs) != files:
        raise RuntimeError(f"the stream took {files} files in {len(epochs)} batches")
    return [update["durationMs"]["triggerExecution"] / 1000 for update in epochs]


def _forget_state(spark: SparkSession) -> None:
    """Unload the state stores: they stay on the heap for a minute, at the expense of the next side."""
    jvm: Any = spark.sparkContext._jvm
    getattr(jvm, f"{STATE_PACKAGE}.StateStore").stop()
    jvm.System.gc()
