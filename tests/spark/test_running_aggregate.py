"""A running aggregate equals a batch computation, whatever the epochs, the tasks and the values."""

from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from batch import WAYS, assert_same_rows, assert_way, batch, last_per_key, read_sink, source

AGGREGATES = {
    "n": hf.count(),
    "n_d": hf.count("d"),
    "s_i": hf.sum("i"),
    "s_d": hf.sum("d"),
    "s_x": hf.sum("x"),
    "lo_x": hf.min("x"),
    "hi_x": hf.max("x"),
    "lo_s": hf.min("s"),
    "hi_s": hf.max("s"),
    "hi_t": hf.max("t"),
    "lo_d": hf.min("d"),
    "a_x": hf.avg("x"),
    "a_d": hf.avg("d"),
    "v_x": hf.variance("x"),
    "sd_i": hf.stddev("i"),
    "u_i": hf.count_distinct("i"),
    "u_d": hf.count_distinct("d"),
    "u_x": hf.count_distinct("x"),
    "u_s": hf.count_distinct("s"),
    "u_t": hf.count_distinct("t"),
}
SCHEMA = pa.schema(
    [
        ("k1", pa.string()),
        ("k2", pa.float64()),
        ("k3", pa.timestamp("us", "UTC")),
        ("i", pa.int32()),
        ("d", pa.decimal128(12, 3)),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
_START = datetime(2026, 3, 1, tzinfo=UTC)
_times = st.none() | st.integers(0, 3).map(lambda h: _START + timedelta(hours=h))
_rows = st.fixed_dictionaries(
    {
        "k1": st.none() | st.sampled_from(["", "a", "b", "ä", "a\x00b"]),
        "k2": st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
        "k3": _times,
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "d": st.none() | st.decimals(-(10**8), 10**8, places=3).map(Decimal),
        "x": st.none() | st.sampled_from([0.0, -0.0, -1.25, 3.5, 1e6]) | st.floats(-1e6, 1e6),
        "s": st.none() | st.text(max_size=4),
        "t": _times,
    }
)


def check_equals_batch(
    spark: SparkSession,
    home: Path,
    table: pa.Table,
    keys: tuple[str, ...],
    per_epoch: int,
    tasks: int,
    bits: int,
    way: str = "spark",
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    out = home / "out"
    flow = hf.Flow("property")
    rows = flow.source("rows", source(home, table, per_epoch, way))
    rows.group_by(*keys).agg(**AGGREGATES).named("totals").to(hf.parquet(str(out)))
    report = flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "totals", "spark" if "k2" in keys else way)
    assert report.stages["totals"].epochs == -(-table.num_rows // per_epoch)
    sql = {name: aggregate.sql() for name, aggregate in AGGREGATES.items()}
    expected = batch(spark, spark.createDataFrame(table), keys, sql)
    assert_same_rows(last_per_key(spark, out, keys), expected)


@given(
    data=st.lists(_rows, min_size=1, max_size=40),
    keys=st.sampled_from([("k1",), ("k2",), ("k1", "k2"), ("k3", "k1")]),
    per_epoch=st.integers(3, 20),
    tasks=st.integers(1, 5),
    bits=st.sampled_from([64, 8]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=18)
def test_any_epochs_and_tasks_equal_a_batch(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data, keys, per_epoch, tasks, bits, way
) -> None:
    home = tmp_path_factory.getbasetemp() / "property"
    check_equals_batch(spark, home, pa.Table.from_pylist(data, SCHEMA), keys, per_epoch, tasks, bits, way)


def test_nan_groups_with_nan_and_minus_zero_with_zero_across_epochs(
    spark: SparkSession, tmp_path: Path
) -> None:
    row = {"k1": None, "k3": None, "i": 1, "d": None, "x": 1.0, "s": "s", "t": None}
    values = [math.nan, 0.0, -0.0, math.nan, -0.0, None, None]
    table = pa.Table.from_pylist([{**row, "k2": value} for value in values], SCHEMA)
    check_equals_batch(spark, tmp_path / "home", table, ("k2", "k1"), 1, 3, 64)
    assert last_per_key(spark, tmp_path / "home" / "out", ["k2"]).count() == 3


def test_nan_is_the_largest_number_and_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 1, 2, 2, 3], "x": [1.0, math.nan, 2.0, math.nan, 1.0, math.nan]})
    out = tmp_path / "out"
    flow = hf.Flow("nan")
    rows = flow.source("rows", hf.rows(table, per_epoch=1))
    aggregates = {"lo": hf.min("x"), "hi": hf.max("x"), "s": hf.sum("x"), "v": hf.variance("x")}
    aggregates["u"] = hf.count_distinct("x")
    rows.group_by("k").agg(**aggregates).to(hf.parquet(str(out)))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    sql = {name: aggregate.sql() for name, aggregate in aggregates.items()}
    assert_same_rows(last_per_key(spark, out, ["k"]), batch(spark, spark.createDataFrame(table), ["k"], sql))


def test_array_and_struct_keys_are_compared_by_value(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flow = hf.Flow("nested")
    rows = flow.source("rows", hf.rows(pa.table({"a": [1, 2, 1, None, 2, None]}), per_epoch=2))
    nested = rows.transform(
        lambda df: df.selectExpr("array(a, 1L) as arr", "named_struct('a', a, 'b', 'x') as st")
    )
    nested.group_by("arr", "st").agg(n=hf.count()).to(hf.parquet(str(out)))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3, hash_bits=8)
    found = {row["n"] for row in last_per_key(spark, out, ["arr", "st"]).collect()}
    assert found == {2}


def test_every_epoch_emits_exactly_the_keys_it_changed(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flow = hf.Flow("changes")
    rows = flow.source("rows", hf.rows(pa.table({"k": [1, 2, 2, 3, 1, 1]}), per_epoch=2))
    rows.group_by("k").agg(n=hf.count()).to(hf.parquet(str(out)))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    found = sorted((row["epoch"], row["k"], row["n"]) for row in read_sink(out).to_pylist())
    assert found == [(0, 1, 1), (0, 2, 1), (1, 2, 2), (1, 3, 1), (2, 1, 3)]


@pytest.mark.parametrize("ansi", [True, False])
def test_bigint_overflow_across_epochs_is_what_spark_would_do(
    spark: SparkSession, tmp_path: Path, ansi: bool
) -> None:
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    try:
        flow = hf.Flow("overflow")
        rows = flow.source("rows", hf.rows(pa.table({"k": [1, 1], "v": [2**63 - 1, 1]}), per_epoch=1))
        rows.group_by("k").agg(s=hf.sum("v")).named("sums").to(hf.parquet(str(tmp_path / "out")))
        if not ansi:
            flow.run(tmp_path / "work", until_idle=True, spark=spark)
            wrapped = last_per_key(spark, tmp_path / "out", ["k"]).collect()[0]["s"]
            assert wrapped == -(2**63)
            return
        with pytest.raises(hf.InputError, match="aggregate 's' overflows") as caught:
            flow.run(tmp_path / "work", until_idle=True, spark=spark)
        assert (caught.value.stage, caught.value.epoch) == ("sums", 1)
        assert last_per_key(spark, tmp_path / "out", ["k"]).collect()[0]["s"] == 2**63 - 1
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_decimal_overflow_stays_null_without_ansi(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        big = Decimal("9" * 38)
        table = pa.table({"k": [1, 1, 1], "v": pa.array([big, big, Decimal(1)], pa.decimal128(38, 0))})
        flow = hf.Flow("decimals")
        rows = flow.source("rows", hf.rows(table, per_epoch=1))
        rows.group_by("k").agg(s=hf.sum("v"), a=hf.avg("v")).to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
        row = last_per_key(spark, tmp_path / "out", ["k"]).collect()[0]
        expected = batch(
            spark, spark.createDataFrame(table), ["k"], {"s": "sum(v)", "a": "avg(v)"}
        ).collect()[0]
        assert (row["s"], row["a"]) == (expected["s"], expected["a"]) == (None, None)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
