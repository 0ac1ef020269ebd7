"""count_distinct: Spark's count(DISTINCT ...), whatever the epochs, the tasks and the restarts; and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, ddl, last_per_key, read_sink, write_files

AGGREGATES = {
    "pairs": hf.count_distinct("s", "x"),
    "lower": hf.count_distinct("lower(s)", max=10),
    "big": hf.count_distinct("big", "big + 1"),
    "flags": hf.count_distinct("x > 1", "b"),
    "whole": hf.count_distinct("b"),
}


def table(seed: int) -> pa.Table:
    """Values that differ little, with nulls and numbers that are equal although their bits are not."""
    rows = range(24)
    words = [None, "", "a", "A", "b", "ä", "x" * 40]
    numbers = [None, 0.0, -0.0, math.nan, 1.5, -math.nan, math.inf]
    wide = [None, Decimal(1).scaleb(-3), Decimal(10**34), Decimal(-(10**34))]
    return pa.table(
        {
            "k": [None if i % 5 == 0 else i % 3 for i in rows],
            "s": pa.array([words[(i * 3 + seed) % len(words)] for i in rows], pa.string()),
            "x": pa.array([numbers[(i * 5 + seed * 2) % len(numbers)] for i in rows], pa.float64()),
            "big": pa.array([wide[(i + seed) % len(wide)] for i in rows], pa.decimal128(38, 3)),
            "b": pa.array([words[(i + seed) % len(words)] for i in rows], pa.string()).cast(pa.binary()),
        }
    )


def test_any_epochs_and_a_restart_equal_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    tables = [table(seed) for seed in range(3)]

    def run() -> None:
        flow = hf.Flow("distinct")
        files = hf.files(str(tmp_path / "in"), schema=ddl(tables[0].schema), max_files_per_epoch=1)
        totals = flow.source("rows", files).group_by("k").agg(**AGGREGATES).named("totals")
        totals.to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)

    write_files(tmp_path / "in", tables[:2])
    run()
    write_files(tmp_path / "in", tables[2:], first=2)
    run()
    sql = {name: aggregate.sql() for name, aggregate in AGGREGATES.items()}
    expected = batch(spark, spark.createDataFrame(pa.concat_tables(tables)), ["k"], sql)
    assert_same_rows(last_per_key(spark, tmp_path / "out", ["k"]), expected)


def run(spark: SparkSession, home: Path, aggregate: hf.Aggregate) -> None:
    rows = pa.table({"k": [1, 1, 1], "v": [1, 2, 3], "a": [[1], [2], []]})
    flow = hf.Flow("bounded")
    grouped = flow.source("rows", hf.rows(rows, per_epoch=1)).group_by("k")
    grouped.agg(d=aggregate).named("totals").to(hf.parquet(str(home / "out")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=2)


def stopped(spark: SparkSession, home: Path, aggregate: hf.Aggregate) -> hf.HoldfastError:
    with pytest.raises(hf.HoldfastError) as caught:
        run(spark, home, aggregate)
    return caught.value


def test_a_key_with_too_many_values_stops_the_flow_until_it_may_have_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    error = stopped(spark, tmp_path, hf.count_distinct("v", max=2))
    assert (type(error), error.stage, error.epoch, error.heals) == (hf.InputError, "totals", 2, False)
    assert "'d' counts more than 2 different values" in str(error)
    assert "hf.approx_distinct" in str(error)
    run(spark, tmp_path, hf.count_distinct("v", max=3))
    assert [row["d"] for row in read_sink(tmp_path / "out").to_pylist()] == [1, 2, 3]


@pytest.mark.parametrize(
    "aggregate",
    [
        hf.sum("sum(v)"),
        hf.count("v + count(v)"),
        hf.max("sum(v) over (partition by k)"),
        hf.min("row_number() over (order by v)"),
        hf.count("explode(a)"),
        hf.first("v", by="max(v)"),
        hf.count_distinct("k", "max(v)"),
    ],
    ids=lambda aggregate: aggregate.sql(),
)
def test_aggregates_take_expressions_of_single_rows(
    spark: SparkSession, tmp_path: Path, aggregate: hf.Aggregate
) -> None:
    error = stopped(spark, tmp_path, aggregate)
    assert isinstance(error, hf.PlanError)
    assert (error.stage, error.operation) == ("totals", "bind")
    assert (
        f"aggregate 'd' = {aggregate.sql()} is of an expression that looks at several rows" in error.message
    )
    assert "a stage" in str(error.hint)


@pytest.mark.parametrize("expression", ["a", "named_struct('v', v)", "string(k) collate UNICODE_CI"])
def test_values_that_a_digest_cannot_tell_apart_are_refused(
    spark: SparkSession, tmp_path: Path, expression: str
) -> None:
    error = stopped(spark, tmp_path, hf.count_distinct(expression))
    assert isinstance(error, hf.PlanError)
    assert "whose values cannot be told apart" in error.message
