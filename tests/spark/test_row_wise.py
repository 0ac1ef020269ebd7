"""A transform treats rows one by one: what looks at several rows is refused when the flow is bound, by its plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

import holdfast as hf
from holdfast.flow.planner import plan
from holdfast.spark.bind import bind
from holdfast.spark.schemas import parse_schema
from holdfast.spark.session import epoch_settings

Transformation = Callable[[DataFrame], DataFrame]

SCHEMA = "k bigint, v bigint, ts timestamp, a array<bigint>"


def bound(spark: SparkSession, *steps: Transformation) -> None:
    flow = hf.Flow("rows")
    stream = flow.source("rows", hf.files("in/", schema=SCHEMA))
    for step in steps:
        stream = stream.transform(step)
    stream.to(hf.parquet("out/"))
    with epoch_settings(spark):
        bind(spark, plan(flow), {"rows": parse_schema("rows", SCHEMA)})


def table(df: DataFrame) -> DataFrame:
    """Rows that do not come from the stream."""
    return df.sparkSession.createDataFrame([(1, "one")], "k bigint, name string")


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").count()


def sql(query: str) -> Transformation:
    def transformation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("events")
        table(df).createOrReplaceTempView("names")
        return df.sparkSession.sql(query)

    return transformation


def numbered(df: DataFrame) -> DataFrame:
    wide = {f"c{i}": f.lit(i) for i in range(40)}
    return df.withColumns({**wide, "n": f.monotonically_increasing_id()})


def first_of_key(df: DataFrame) -> DataFrame:
    return df.withColumn("n", f.row_number().over(Window.partitionBy("k").orderBy("v"))).where("n = 1")


REFUSED: dict[str, tuple[Transformation, str, str]] = {
    "group by": (counted, "an aggregate", "group_by"),
    "total": (lambda df: df.agg(f.sum("v").alias("v")), "an aggregate", "group_by"),
    "pivot": (lambda df: df.groupBy("k").pivot("v", [1, 2]).sum("v"), "an aggregate", "group_by"),
    "rollup": (lambda df: df.rollup("k").count(), "an aggregate", "group_by"),
    "sql group by": (sql("select k, count(*) n from events group by k"), "an aggregate", "group_by"),
    "behind other steps": (
        lambda df: counted(df.where("v > 1")).withColumn("x", f.lit("a\nb")).unionByName(counted(df), True),
        "an aggregate",
        "group_by",
    ),
    "distinct": (lambda df: df.distinct(), "duplicates", r"\.dedup"),
    "drop duplicates": (lambda df: df.dropDuplicates(["k"]), "duplicates", r"\.dedup"),
    "sql union": (sql("select k from events union select k from names"), "duplicates", r"\.dedup"),
    "window function": (first_of_key, "a window function", r"\.window"),
    "limit": (lambda df: df.limit(3), "a limit", "every epoch anew"),
    "offset": (lambda df: df.offset(3), "a limit", "every epoch anew"),
    "top": (lambda df: df.orderBy("v").limit(3), "a (limit|sort)", "where|sort"),
    "sort": (lambda df: df.orderBy("v"), "a sort", "order is not kept"),
    "sample": (lambda df: df.sample(0.5, seed=1), "a sample", "xxhash64"),
    "number among many columns": (numbered, "monotonically_increasing_id", "xxhash64"),
    "partition": (lambda df: df.withColumn("p", f.spark_partition_id()), "spark_partition_id", "xxhash64"),
    "index": (lambda df: df.zipWithIndex(), "zipWithIndex", "xxhash64"),
    "intersect": (lambda df: df.select("k").intersect(table(df).select("k")), "intersect", "left_semi"),
    "except": (lambda df: table(df).select("k").exceptAll(df.select("k")), "except", "left_semi"),
    "pandas groups": (
        lambda df: df.groupBy("k").applyInPandas(lambda rows: rows, df.schema),
        "a function of groups",
        r"\.stateful",
    ),
    "cogroup": (
        lambda df: (
            df.groupBy("k").cogroup(table(df).groupBy("k")).applyInPandas(lambda left, right: left, df.schema)
        ),
        "a function of groups",
        r"\.stateful",
    ),
    "self join": (
        lambda df: df.join(df.select("k", f.col("v").alias("w")), "k"),
        "a join of the stream with itself",
        r"\.join",
    ),
    "table left join stream": (
        lambda df: table(df).join(df, "k", "left"),
        "a join that keeps",
        "how='left'",
    ),
    "table without partners": (
        lambda df: table(df).join(df, "k", "left_anti"),
        "a join that keeps",
        "how='left'",
    ),
    "full join": (lambda df: df.join(table(df), "k", "full"), "a join that keeps", "how='left'"),
    "subquery": (sql("select * from events where v > (select avg(v) from events)"), "aggregate", "group_by"),
    "subquery without an aggregate": (
        sql("select * from names where k in (select k from events)"),
        "a subquery over the stream",
        "aggregate of the stream",
    ),
    "common table expression": (
        sql("with some as (select k from events) select * from some limit 1"),
        "a limit",
        "every epoch anew",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_looks_at_several_rows_is_refused_by_name(spark: SparkSession, case: str) -> None:
    transformation, what, instead = REFUSED[case]
    with pytest.raises(hf.PlanError, match=what) as caught:
        bound(spark, lambda df: df.where("v > 0"), transformation)
    assert caught.value.stage == "rows-1"
    assert caught.value.operation == "transform"
    assert caught.match(instead)


def doubled(df: DataFrame) -> DataFrame:
    return df.withColumn("w", f.udf(lambda value: value * 2, t.LongType())("v"))


def count_of_names(df: DataFrame) -> DataFrame:
    return table(df).groupBy("k").agg(f.count("name").alias("names"))


def numbered_names(df: DataFrame) -> DataFrame:
    names = table(df).distinct().select("k", "name", f.monotonically_increasing_id())
    return names.orderBy("name").limit(10)


ALLOWED: dict[str, Transformation] = {
    "columns": lambda df: df.selectExpr("k + 1 as k", "v as `group by`", "explode(a) as x"),
    "words in text": lambda df: df.withColumn("s", f.lit("Aggregate [k]\nSort [v], true\n  Window [x]")),
    "union with itself": lambda df: df.unionByName(df.where("v > 1")),
    "repartition": lambda df: df.repartition(3, "k").coalesce(2).sortWithinPartitions("v"),
    "functions of rows": lambda df: doubled(df).mapInArrow(lambda rows: rows, "k bigint"),
    "functions of rows in pandas": lambda df: df.mapInPandas(lambda rows: rows, df.schema),
    "a table": lambda df: df.join(table(df), "k", "left"),
    "an aggregate of a table": lambda df: df.join(f.broadcast(count_of_names(df)), "k"),
    "a table with numbers": lambda df: df.join(numbered_names(df), "k", "left_semi"),
    "a table on the left": lambda df: table(df).join(df, "k", "right"),
    "subquery of a table": sql(
        "select *, (select max(k) from names) m from events where k in (select k from names)"
    ),
    "common table expression": sql("with s as (select * from events) select * from s where v > 1"),
    "table expression of a table": sql(
        "with n as (select k, count(*) c from names group by k) select s.* from events s join n on s.k = n.k"
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_treats_rows_one_by_one_is_bound(spark: SparkSession, case: str) -> None:
    bound(spark, ALLOWED[case], lambda df: df.where("true"))


def test_the_session_keeps_its_setting_of_how_many_fields_are_shown(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.debug.maxToStringFields", "7")
    try:
        bound(spark, ALLOWED["columns"])
        assert spark.conf.get("spark.sql.debug.maxToStringFields") == "7"
    finally:
        spark.conf.unset("spark.sql.debug.maxToStringFields")
