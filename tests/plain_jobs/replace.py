"""Writes a file a batch, whole and under the number of the batch: what is run again replaces itself."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

OUT = Path("out")


def start(spark: SparkSession, checkpoint: str, source: str) -> StreamingQuery:
    rows = spark.readStream.schema("k long, v long").parquet(source)
    return rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write).start()


def write(rows: DataFrame, number: int) -> None:
    OUT.mkdir(exist_ok=True)
    staged = OUT / f".{number}"
    staged.write_text("".join(f"{json.dumps(row.asDict())}\n" for row in rows.collect()))
    staged.rename(OUT / f"{number}.jsonl")


def read() -> list[dict[str, int]]:
    files = sorted(OUT.glob("[0-9]*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
