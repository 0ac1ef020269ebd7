"""Whatever way the user's code fails, it is known for what it is: named by its stage, tried once, mended and run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import read_sink
from holdfast.core.errors import CodeError, FlowError, PlanError
from holdfast.runtime.failure import facts_of

TABLE = pa.table({"k": ["a", "b"], "v": pa.array([0, 2], pa.int64())})


def by_udf(df: DataFrame) -> DataFrame:
    return df.withColumn("v", f.udf(lambda v: 12 // v, "long")("v"))


def by_pandas(df: DataFrame) -> DataFrame:
    def halves(tables: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for table in tables:
            yield table.assign(v=table["v"].map(lambda v: 12 // v))

    return df.mapInPandas(halves, df.schema)


def of_another_shape(df: DataFrame) -> DataFrame:
    return df.mapInPandas(lambda tables: tables, "k string, w long")


def by_sql(df: DataFrame) -> DataFrame:
    return df.selectExpr("k", "12 div v as v")


def on_the_driver(df: DataFrame) -> DataFrame:
    return df.limit(12 // len(df.columns[2:]))


def flow_of(code: Callable[[DataFrame], DataFrame], out: Path) -> hf.Flow:
    flow = hf.Flow("shares")
    rows = flow.source("rows", hf.rows(TABLE, per_epoch=2))
    rows.transform(code).named("shares").to(hf.parquet(str(out)))
    return flow


@pytest.mark.parametrize(
    ("code", "kind", "message", "function"),
    [
        (by_udf, CodeError, "raised ZeroDivisionError", "<lambda>"),
        (by_pandas, CodeError, "raised ZeroDivisionError", "<lambda>"),
        (of_another_shape, CodeError, "RESULT_COLUMN_NAMES_MISMATCH", None),
        (by_sql, FlowError, "DIVIDE_BY_ZERO", None),
        (on_the_driver, CodeError, "a transform raised ZeroDivisionError", "on_the_driver"),
    ],
)
def test_code_that_fails_names_its_stage_and_is_not_tried_again(
    spark: SparkSession,
    tmp_path: Path,
    code: Callable[[DataFrame], DataFrame],
    kind: type[FlowError],
    message: str,
    function: str | None,
) -> None:
    with pytest.raises(kind, match=message) as caught:
        flow_of(code, tmp_path / "out").run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert (type(caught.value), caught.value.stage) == (kind, "shares")
    facts = facts_of(caught.value)
    if function:
        assert f"in {function}\n" in facts["traceback"]
        assert facts["line"].startswith(__file__)
    assert "pyspark" not in (facts["traceback"] or "").partition("pyspark.errors.")[0]
    flow_of(lambda df: df, tmp_path / "out").run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert sorted(read_sink(tmp_path / "out")["v"].to_pylist()) == [0, 2]


def test_what_befalls_a_task_from_outside_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def starved(tables: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for table in tables:
            with calls.open("a") as file:
                file.write("called\n")
            if len(calls.read_text().split()) == 1:
                raise MemoryError
            yield table

    flow = flow_of(lambda df: df.mapInPandas(starved, df.schema).coalesce(1), tmp_path / "out")
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert sorted(read_sink(tmp_path / "out")["v"].to_pylist()) == [0, 2]


def test_a_column_that_is_not_there_is_told_when_the_flow_is_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = flow_of(lambda df: df.select("no_such"), tmp_path / "out")
    with pytest.raises(PlanError, match="no_such") as caught:
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert caught.value.stage == "shares"
