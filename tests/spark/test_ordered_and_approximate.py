"""first, last and approx_distinct: independent of epochs, tasks and order, and equal on replay."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key


def run(
    spark: SparkSession, home: Path, table: pa.Table, per_epoch: int, tasks: int, **aggregates: hf.Aggregate
):
    flow = hf.Flow("picks")
    rows = flow.source("rows", hf.rows(table, per_epoch=per_epoch))
    rows.group_by("k").agg(**aggregates).to(hf.parquet(str(home / "out")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks)
    return last_per_key(spark, home / "out", ["k"])


def shuffled(rows: int, keys: int) -> pa.Table:
    order = list(range(rows))
    random.Random(5).shuffle(order)
    return pa.table(
        {
            "k": [i % keys for i in order],
            "t": pa.array([None if i % 17 == 0 else float(i) for i in order], pa.float64()),
            "x": pa.array([None if i % 5 == 0 else f"value {i}" for i in order]),
        }
    )


@pytest.mark.parametrize(("per_epoch", "tasks"), [(7, 3), (100, 1)])
def test_first_and_last_equal_a_batch_whatever_the_order(
    spark: SparkSession, tmp_path: Path, per_epoch: int, tasks: int
) -> None:
    table = shuffled(100, 6)
    picks = {"a": hf.first("x", by="t"), "z": hf.last("x", by="t"), "s": hf.last("struct(k, x)", by="t")}
    found = run(spark, tmp_path, table, per_epoch, tasks, **picks)
    sql = {name: pick.sql() for name, pick in picks.items()}
    assert_same_rows(found, batch(spark, spark.createDataFrame(table), ["k"], sql))


def test_nan_is_the_last_of_all(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 1], "t": [math.nan, 1.0, 2.0], "x": ["nan", "one", "two"]})
    row = run(spark, tmp_path, table, 1, 2, a=hf.first("x", by="t"), z=hf.last("x", by="t")).collect()[0]
    assert (row["a"], row["z"]) == ("one", "nan")


def test_equal_times_are_settled_the_same_way_in_any_split(spark: SparkSession, tmp_path: Path) -> None:
    values = [f"v{i}" for i in range(30)]
    picked = set()
    for number, (per_epoch, order) in enumerate(
        [(30, values), (4, values[::-1]), (7, values[15:] + values[:15])]
    ):
        table = pa.table({"k": [1] * 30, "t": [5] * 30, "x": order})
        row = run(
            spark,
            tmp_path / str(number),
            table,
            per_epoch,
            2,
            a=hf.first("x", by="t"),
            z=hf.last("x", by="t"),
        )
        picked.add((row.collect()[0]["a"], row.collect()[0]["z"]))
    assert len(picked) == 1


def test_approx_distinct_is_near_the_truth_and_the_same_in_any_split(
    spark: SparkSession, tmp_path: Path
) -> None:
    sizes = {0: 1, 1: 40, 2: 3_000, 3: 20_000}
    rows = [(k, None if i == 0 and k == 0 else i) for k, size in sizes.items() for i in range(size)]
    random.Random(3).shuffle(rows)
    table = pa.table({"k": [k for k, _ in rows], "x": pa.array([x for _, x in rows], pa.int64())})
    results = []
    for number, (per_epoch, tasks) in enumerate([(30_000, 1), (6_000, 3)]):
        found = run(spark, tmp_path / str(number), table, per_epoch, tasks, d=hf.approx_distinct("x"))
        results.append({row["k"]: row["d"] for row in found.collect()})
    assert results[0] == results[1]
    assert results[0][0] == 0
    assert results[0][1] == pytest.approx(40, rel=0.1)
    assert results[0][2] == pytest.approx(3_000, rel=0.15)
    assert results[0][3] == pytest.approx(20_000, rel=0.15)


def test_a_nested_order_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(hf.PlanError, match="which has no order here"):
        run(spark, tmp_path, pa.table({"k": [1]}), 1, 1, a=hf.first("k", by="array(k)"))
