"""The interval join equals a batch join of the rows that were not late, whatever the epochs, the tasks and the order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows
from event_time import MINUTE_US, UTC_TIME, events, ids_of, micros, watermark_of_rows
from holdfast.ledger.status import status

WITHIN = {
    "around": ("-5 minutes", "5 minutes"),
    "after": ("1 minute", "20 minutes"),
    "before": ("-30 minutes", "-10 minutes"),
    "equal": ("0 seconds", "0 seconds"),
    "lopsided": ("-1 hour", "3 minutes"),
}
BOUNDS = {"around": (-5, 5), "after": (1, 20), "before": (-30, -10), "equal": (0, 0), "lopsided": (-60, 3)}


def two_sides(seed: int, rows: int, disorder_us: int = 0) -> tuple[pa.Table, pa.Table]:
    """Two streams with keys of two columns; many rows a key, some equal in all columns, null keys and times.

    Times are whole minutes, so that some are equal on both sides and many lie on the bounds.
    """
    sides = []
    for number in (0, 1):
        table = events(seed + number, rows, keys=2, disorder_us=disorder_us, nulls=0.05)
        rng = np.random.default_rng(seed + number)
        whole = pa.array(micros(table["ts"]) // MINUTE_US * MINUTE_US, mask=np.asarray(table["ts"].is_null()))
        table = table.set_column(3, "ts", whole.cast(UTC_TIME))
        doubles = np.array([0.0, -0.0, np.nan, 1.5])[rng.integers(0, 4, rows)]
        table = table.append_column("d", pa.array(doubles, mask=rng.random(rows) < 0.05, from_pandas=False))
        twice = np.sort(np.concatenate([np.arange(rows), rng.choice(rows, rows // 8)]))
        sides.append(table.take(pa.array(twice)))
    left, right = sides
    extra = pa.array([f"r{i}" for i in range(right.num_rows)])
    return left, right.rename_columns(["id", "k", "v", "at", "d"]).append_column("extra", extra)


def run(
    spark: SparkSession,
    home: Path,
    left: pa.Table,
    right: pa.Table,
    *,
    per_epoch: int = 20,
    within: tuple[str, str] = ("-5 minutes", "5 minutes"),
    how: str = "inner",
    late: str = "10 minutes",
    tasks: int = 3,
    bits: int = 64,
    drain: bool = True,
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    flow = hf.Flow("joins")
    one = flow.source("left", hf.rows(left, per_epoch=per_epoch))
    other = flow.source("right", hf.rows(right, per_epoch=per_epoch))
    joined = one.join(other, on=["k", "d"], time=("ts", "at"), within=within, late=late, how=how).named("j")
    joined.to(hf.parquet(str(home / "out")))
    joined.late_to(hf.parquet(str(home / "late_left")), side="left")
    joined.late_to(hf.parquet(str(home / "late_right")), side="right")
    flow.run(home / "work", until_idle=True, drain=drain, spark=spark, tasks=tasks, hash_bits=bits)


def on_time(home: Path, table: pa.Table, source: str, time: str, per_epoch: int) -> np.ndarray:
    reached = watermark_of_rows(home / "work", "j", table.num_rows, per_epoch, source)
    return np.asarray(table[time].is_valid()) & (micros(table[time]) >= reached)


def batch_join(
    spark: SparkSession, left: pa.Table, right: pa.Table, bounds: tuple[int, int], how: str
) -> DataFrame:
    spark.createDataFrame(left).createOrReplaceTempView("batch_left")
    spark.createDataFrame(right).createOrReplaceTempView("batch_right")
    low, high = (minutes * MINUTE_US for minutes in bounds)
    return spark.sql(
        "select l.k, l.d, l.id, l.v, l.ts, r.id as id_right, r.v as v_right, r.at, r.extra"
        f" from batch_left l {how} join batch_right r on l.k = r.k and l.d = r.d"
        f" and unix_micros(r.at) - unix_micros(l.ts) between {low} and {high}"
    )


def found(spark: SparkSession, home: Path, like: DataFrame) -> DataFrame:
    if not any((home / "out").rglob("*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(home / "out")).drop("epoch")


@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(sorted(WITHIN)),
    how=st.sampled_from(["inner", "left"]),
    per_epoch=st.integers(7, 50),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    disorder=st.sampled_from([0, 10, 60]),
)
@settings(max_examples=settings().max_examples // 12)
def test_any_epochs_tasks_and_order_equal_a_batch_of_the_rows_that_were_not_late(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    seed,
    kind,
    how,
    per_epoch,
    tasks,
    bits,
    disorder,
) -> None:
    home = tmp_path_factory.getbasetemp() / "join"
    left, right = two_sides(seed, 110, disorder * MINUTE_US)
    run(spark, home, left, right, per_epoch=per_epoch, within=WITHIN[kind], how=how, tasks=tasks, bits=bits)
    kept = on_time(home, left, "left", "ts", per_epoch), on_time(home, right, "right", "at", per_epoch)
    expected = batch_join(spark, left.filter(kept[0]), right.filter(kept[1]), BOUNDS[kind], how)
    assert_same_rows(found(spark, home, expected), expected)
    assert ids_of(home / "late_left") == sorted(left.filter(~kept[0])["id"].to_pylist())
    assert ids_of(home / "late_right") == sorted(right.filter(~kept[1])["id"].to_pylist())
    aside = status(home / "work")["stages"]["j"]["aside"]
    assert sum(aside.values()) == sum(np.count_nonzero(~mask) for mask in kept)
    if how == "left":
        assert status(home / "work")["stages"]["j"]["state_rows"] == 0
