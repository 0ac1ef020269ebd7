"""The oracle: what a batch computation over all the input says, and how to read what a sink holds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

import holdfast as hf
from holdfast.flow.endpoints import SourceDescription

RELATIVE_ERROR = 1e-9


def read_sink(path: Path) -> pa.Table:
    """All rows of a Parquet sink, with their epoch."""
    return ds.dataset(path, format="parquet", partitioning="hive").to_table()


def last_per_key(spark: SparkSession, path: Path, keys: Sequence[str]) -> DataFrame:
    """The newest row of every key in a sink of changed keys."""
    rows = spark.read.parquet(str(path))
    newest = rows.groupBy(*keys).agg(f.max_by(f.struct(*rows.columns), "epoch").alias("row"))
    return newest.select("row.*").drop("epoch")


def batch(
    spark: SparkSession, rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, str]
) -> DataFrame:
    """The same aggregates, computed by Spark over everything at once."""
    return rows.groupBy(*keys).agg(*(f.expr(sql).alias(name) for name, sql in aggregates.items()))


def assert_same_rows(found: DataFrame, expected: DataFrame) -> None:
    """Equal as multisets: exact columns exactly, floating point within the declared error."""
    assert sorted(found.columns) == sorted(expected.columns)
    left, right = (_sorted(df.select(*sorted(expected.columns))) for df in (found, expected))
    pd.testing.assert_frame_equal(left, right, rtol=RELATIVE_ERROR, atol=1e-9, check_dtype=False)


def write_files(directory: Path, tables: Sequence[pa.Table], first: int = 0) -> None:
    """Drop tables into a source directory as a careful producer would: written aside, then renamed."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, first):
        aside = directory / f".{number:05d}.parquet"
        pq.write_table(table, aside)
        aside.rename(directory / f"{number:05d}.parquet")


# How rows reach an operator: through Spark SQL, or read by its tasks.
WAYS = ("spark", "direct")


def source(home: Path, table: pa.Table, per_epoch: int, way: str) -> SourceDescription:
    """The same rows in the same epochs, either way."""
    if way == "spark":
        return hf.rows(table, per_epoch=per_epoch)
    starts = range(0, table.num_rows, per_epoch)
    write_files(home / "in", [table.slice(start, per_epoch) for start in starts])
    return hf.files(str(home / "in"), schema=ddl(table.schema), max_files_per_epoch=1)


def ddl(schema: pa.Schema) -> str:
    """An Arrow schema as a flow file would write it."""
    fields = from_arrow_schema(schema).fields
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)


def plans(work: Path, stage: str) -> list[dict[str, object]]:
    """The recorded plans of a stage, in order of their epochs."""
    return _bodies(work, "select body from plans where stage = ? order by epoch, version", stage)


def digests(work: Path, stage: str) -> list[object]:
    """What the epochs of a stage must agree on with any replay of them."""
    found = _bodies(work, "select body from manifests where stage = ? order by epoch", stage)
    return [manifest["digests"] for manifest in found]


def _bodies(work: Path, query: str, stage: str) -> list[dict[str, object]]:
    with closing(sqlite3.connect(work / "ledger.db")) as connection:
        return [json.loads(body) for (body,) in connection.execute(query, (stage,)).fetchall()]


def assert_way(work: Path, stage: str, way: str) -> None:
    """The epochs of a stage that read anything did so in this way."""
    ways = {plan["direct"] for plan in plans(work, stage) if plan["rows"]}
    assert ways == {way == "direct"}, ways


def _sorted(df: DataFrame) -> pd.DataFrame:
    """In the order of the exact columns as text; pandas makes a float of an integer column with nulls."""
    frame = df.toPandas()
    if frame.empty:
        return frame
    exact = [name for name, kind in df.dtypes if kind not in ("float", "double")]
    order = frame[exact or df.columns].astype(str).apply("|".join, axis=1)
    return frame.iloc[order.argsort(kind="stable")].reset_index(drop=True)
