"""What users would pick instead: Structured Streaming with its own state stores, and the job without state.

Every side here is a function of a session and a data set that returns the seconds of each file's epoch. The
streams measure themselves (`durationMs.triggerExecution`: planning, the job, the state store and the logs of the
checkpoint), because a trigger is the whole of what an epoch costs them; the time between triggers, which is
small, is theirs for free. So are batches without rows, which a stream runs when the watermark has moved and there
is no further file: what it moves past while there are files is done within the batch of the next file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench.data import DataSet, scratch
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


# What a stream computes from its rows.
Query = Callable[[DataFrame], DataFrame]


def spark_rocksdb(spark: SparkSession, made: DataSet, *, query: Query, output_mode: str) -> list[float]:
    """Structured Streaming with RocksDB and changelog checkpoints, its advised setting for large state."""
    store = {"providerClass": ROCKSDB_PROVIDER, "rocksdb.changelogCheckpointing.enabled": "true"}
    return _stream(spark, made, query, output_mode, store)


def spark_default(spark: SparkSession, made: DataSet, *, query: Query, output_mode: str) -> list[float]:
    """Structured Streaming with the provider it has when nobody chooses: maps on the heap, delta files."""
    return _stream(spark, made, query, output_mode, {"providerClass": DEFAULT_PROVIDER})


def stateless(spark: SparkSession, made: DataSet) -> list[float]:
    """The same read, settings, exchange and groupBy, and a `mapInArrow` that only counts: Spark's own cost."""
    with epoch_settings(spark):
        return [_timed_job(spark, file, made.schema) for file in made.files]


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
    spark: SparkSession, made: DataSet, query: Query, output_mode: str, store: Mapping[str, str]
) -> list[float]:
    """Run a query over the files' directory, a file a trigger, from an empty checkpoint; discard the output."""
    session_of_its_own = spark.newSession()
    session_of_its_own.conf.set("spark.sql.shuffle.partitions", TASKS)
    for name, value in store.items():
        session_of_its_own.conf.set(f"spark.sql.streaming.stateStore.{name}", value)
    reader = session_of_its_own.readStream.schema(made.schema).option("maxFilesPerTrigger", 1)
    results = query(reader.parquet(str(made.directory)))
    writer = results.writeStream.format("noop").outputMode(output_mode).trigger(availableNow=True)
    with scratch(made.files) as checkpoint:
        started = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            if not started.awaitTermination(STREAM_SECONDS_MAX):
                raise TimeoutError(f"the stream did not end within {STREAM_SECONDS_MAX} s")
            progress = [json.loads(update.json) for update in started.recentProgress]
        finally:
            started.stop()
            _forget_state(spark)
    return _seconds_per_file(progress, len(made.files))


def _seconds_per_file(progress: Sequence[dict[str, Any]], files: int) -> list[float]:
    """One update a file, in the order of the files, no row too late; anything else would compare other work."""
    epochs = [update for update in progress if update["numInputRows"] > 0]
    if len(epochs) != files:
        raise RuntimeError(f"the stream took {files} files in {len(epochs)} batches")
    late = sum(state["numRowsDroppedByWatermark"] for update in epochs for state in update["stateOperators"])
    if late:
        raise RuntimeError(f"the stream dropped {late} rows as late")
    return [update["durationMs"]["triggerExecution"] / 1000 for update in epochs]


def _forget_state(spark: SparkSession) -> None:
    """Unload the state stores: they stay on the heap for a minute, at the expense of the next side."""
    jvm: Any = spark.sparkContext._jvm
    getattr(jvm, f"{STATE_PACKAGE}.StateStore").stop()
    jvm.System.gc()
