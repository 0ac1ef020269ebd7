"""Writes rows and the number of the batch in one transaction, and passes over a batch that is there."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def start(spark: SparkSession, checkpoint: str, source: str) -> StreamingQuery:
    rows = spark.readStream.schema("k long, v long").parquet(source)
    return rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write).start()


def write(rows: DataFrame, number: int) -> None:
    found = [(row["k"], row["v"]) for row in rows.collect()]
    with closing(_database()) as db, db:
        if db.execute("insert or ignore into batches values (?)", (number,)).rowcount:
            db.executemany("insert into rows values (?, ?)", found)


def read() -> list[dict[str, int]]:
    with closing(_database()) as db:
        return [{"k": k, "v": v} for k, v in db.execute("select k, v from rows")]


def _database() -> sqlite3.Connection:
    db = sqlite3.connect("out.db", timeout=30)
    db.execute("create table if not exists rows (k integer, v integer)")
    db.execute("create table if not exists batches (number integer primary key)")
    return db
