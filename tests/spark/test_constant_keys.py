"""Keys that Spark knows to be constants: the exchange holds all the same, for every operator that has one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import read_sink, source
from event_time import at

EVENTS = pa.table({"id": [1, 2, 3, 4, 5, 1], "k": [7, 7, 8, 7, 7, 7], "ts": at(1, 2, 3, 61, 62, 200)})


def constants(df: DataFrame) -> DataFrame:
    """Columns of which the optimiser knows that they are constants, `k` by a filter."""
    return df.where("k = 7").withColumns({"c": f.lit("x"), "nil": f.lit(None).cast("string")})


def constants_of_a_union(df: DataFrame) -> DataFrame:
    first = constants(df).where("id <= 2").withColumn("u", f.lit(1))
    return first.unionByName(constants(df).where("id > 2").withColumn("u", f.lit(1)))


def running_total(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """The number of rows of the one key that there is."""
    total = sum(state.column("total").to_pylist()) + rows.num_rows
    now = rows.select(["c"]).slice(0, 1).append_column("total", pa.array([total], pa.int64()))
    return now, now


def test_every_operator_takes_a_key_that_is_a_constant(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("constants")
    rows = flow.source("rows", source(tmp_path, EVENTS, 6, "direct")).transform(constants)
    streams = {
        "total": rows.group_by("c").agg(n=hf.count()),
        "minutes": rows.group_by("c").window("ts", tumbling="1 minute").agg(n=hf.count()),
        "visits": rows.group_by("c").window("ts", session="30 seconds").agg(n=hf.count()),
        "once": rows.dedup("c", time="ts", within="1 hour"),
        "pairs": rows.join(rows, on="c", time=("ts", "ts"), within=("0 seconds", "0 seconds")),
        "own": rows.stateful(running_total, by=["c"], state="total bigint", output="c string, total bigint"),
    }
    for name, stream in streams.items():
        stream.named(name).to(hf.parquet(str(tmp_path / name)))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)

    def found(name: str, column: str) -> list[int]:
        return sorted(read_sink(tmp_path / name)[column].to_pylist())

    assert found("total", "n") == [5]
    assert found("minutes", "n") == [2, 2]
    assert found("visits", "n") == [2, 2]
    assert found("once", "id") == [1]
    assert found("pairs", "id") == [1, 1, 2, 4, 5]
    assert found("own", "total") == [5]


@pytest.mark.parametrize(
    ("transformation", "keys", "expected"),
    [
        (constants, ("nil",), [[2], [5]]),
        (constants, ("c", "id", "nil"), [[1, 1], [1, 1, 2]]),
        (constants_of_a_union, ("u", "k"), [[2], [5]]),
    ],
)
def test_constants_among_keys_change_nothing(
    spark: SparkSession, tmp_path: Path, transformation, keys: tuple[str, ...], expected: list[list[int]]
) -> None:
    flow = hf.Flow("partly")
    rows = flow.source("rows", source(tmp_path, EVENTS, 3, "direct")).transform(transformation)
    rows.group_by(*keys).agg(n=hf.count()).to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    found = read_sink(tmp_path / "out").to_pylist()
    assert [sorted(row["n"] for row in found if row["epoch"] == epoch) for epoch in (0, 1)] == expected
