"""Everyday steps on a stream give what Spark's batch gives: with nulls, NaN, decimals, duplicates and nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import assert_same_rows, write_files
from holdfast.core.errors import PlanError
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan
from holdfast.spark.bind import bind
from holdfast.spark.schemas import parse_schema
from holdfast.spark.session import epoch_settings

SCHEMA = "k bigint, x double, d decimal(10,2), s string, items array<bigint>"
ARROW = pa.schema(
    [
        ("k", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(10, 2)),
        ("s", pa.string()),
        ("items", pa.list_(pa.int64())),
    ]
)

VERBS: dict[str, tuple[Callable[[Stream], Stream], Callable[[DataFrame], DataFrame]]] = {
    "where": (lambda s: s.where("x > 1 or s = 'b'"), lambda df: df.where("x > 1 or s = 'b'")),
    "filter": (lambda s: s.filter("k is not null"), lambda df: df.filter("k is not null")),
    "select": (
        lambda s: s.select("k", "d * 2 AS twice", y="x / 2", **{"a name": "s"}),
        lambda df: df.select("k", (f.col("d") * 2).alias("twice"), (df.x / 2).alias("y"), df.s.alias("a name")),
    ),
    "explode": (
        lambda s: s.select("k", item="explode(items)"),
        lambda df: df.select("k", f.explode("items").alias("item")),
    ),
    "with_column": (
        lambda s: s.with_column("d", "d + 1").with_column("n", "coalesce(k, -1)"),
        lambda df: df.withColumn("d", f.expr("d + 1")).withColumn("n", f.coalesce("k", f.lit(-1))),
    ),
    "with_columns": (
        lambda s: s.with_columns({"k": "k + 1"}, before="k"),
        lambda df: df.withColumns({"k": df.k + 1, "before": df.k}),
    ),
    "drop": (lambda s: s.drop("items", "s"), lambda df: df.drop("items", "s")),
    "rename": (
        lambda s: s.rename(k="key", x="k"),
        lambda df: df.withColumnsRenamed({"k": "key", "x": "k"}),
    ),
    "union": (
        lambda s: s.where("k > 0").union(s.where("x > 0"), s.select("s", "items", "d", "x", "k")),
        lambda df: df.where("k > 0").union(df.where("x > 0")).union(df),
    ),
    "all of them": (
        lambda s: s.where("x = x").with_column("y", "x * 2").drop("items").rename(s="t").select("k", "y", "t", "d"),
        lambda df: df.where("x = x").selectExpr("k", "x * 2 AS y", "s AS t", "d"),
    ),
}  # fmt: skip

row = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(-3, 3),
        "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25]),
        "d": st.none() | st.decimals(Decimal("-99.99"), Decimal("99.99"), places=2),
        "s": st.none() | st.sampled_from(["", "a", "b", "ß"]),
        "items": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3),
    }
)


@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
@given(files=st.lists(st.lists(row, max_size=8), max_size=3))
@pytest.mark.timeout(300)
def test_any_step_equals_a_batch(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, files: list[list[dict[str, object]]]
) -> None:
    """All steps in one flow, a sink each: what is costly is the run."""
    home = tmp_path_factory.mktemp("verbs")
    tables = [pa.Table.from_pylist(rows, schema=ARROW) for rows in files]
    (home / "in").mkdir()
    write_files(home / "in", tables)
    flow = hf.Flow("verbs")
    rows = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    for number, (step, _) in enumerate(VERBS.values()):
        step(rows).named(f"s{number}").to(hf.parquet(str(home / f"out{number}")))
    flow.run(home / "work", until_idle=True, spark=spark)
    everything = spark.createDataFrame(pa.concat_tables([ARROW.empty_table(), *tables]).combine_chunks())
    for number, (name, (_, same)) in enumerate(VERBS.items()):
        expected = same(everything)
        found = written(spark, home / f"out{number}", expected)
        assert found.schema.simpleString() == expected.schema.simpleString(), name
        assert_same_rows(comparable(found), comparable(expected))


def written(spark: SparkSession, out: Path, like: DataFrame) -> DataFrame:
    """What a sink holds; nothing at all where no epoch had rows."""
    if not any(out.glob("epoch=*/*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(out)).select(*(f"`{name}`" for name in like.columns))


def comparable(df: DataFrame) -> DataFrame:
    """Lists as text: they are compared, not sorted."""
    return df.select(*(f.col(f"`{name}`").cast("string").alias(name) for name in df.columns))


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "drop": (lambda s: s.drop("nobody"), "drop names the column 'nobody', which is not there.*k, x, d, s, items"),
    "rename": (lambda s: s.rename(nobody="b"), "rename names the column 'nobody'"),
    "twice": (lambda s: s.rename(k="x"), "several columns named x"),
    "where": (lambda s: s.where("nobody > 1"), "nobody"),
    "no SQL": (lambda s: s.where("k >"), "Syntax error|PARSE_SYNTAX_ERROR"),
    "no boolean": (lambda s: s.where("k + 1"), "BOOLEAN"),
    "aggregate": (lambda s: s.select("count(1) AS n"), "group_by"),
    "window": (lambda s: s.with_column("n", "row_number() over (partition by k order by x)"), "over"),
}  # fmt: skip


@pytest.mark.parametrize(("step", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_when_the_flow_is_bound(
    spark: SparkSession, step: Callable[[Stream], Stream], said: str
) -> None:
    flow = hf.Flow("verbs")
    step(flow.source("rows", hf.files("in/", schema=SCHEMA))).named("it").to(hf.parquet("out/"))
    with epoch_settings(spark), pytest.raises(PlanError, match=f"(?s){said}"):
        bind(spark, plan(flow), {"rows": parse_schema("rows", SCHEMA)})


def edited(home: Path, spark: SparkSession, conditions: Sequence[str]) -> list[str]:
    """What the ledger notes when a condition is edited between two runs."""
    for number, condition in enumerate(conditions):
        write_files(home / "in", [pa.table({"k": [1, 2, 3]})], first=number)
        flow = hf.Flow("edited")
        rows = flow.source("rows", hf.files(str(home / "in"), schema="k long"))
        rows.where(condition).group_by().agg(n=hf.count()).named("total").to(hf.parquet(str(home / "out")))
        flow.run(home / "work", until_idle=True, spark=spark)
    from holdfast.ledger import schema
    from holdfast.ledger.ledger import reading

    with reading(home / "work") as tx:
        return [
            str(reason)
            for kind, reason in tx.execute(
                schema.events.select().with_only_columns(schema.events.c.kind, schema.events.c.reason)
            )
            if kind == "code changed"
        ]


def test_an_edited_condition_is_told_by_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    told = edited(tmp_path, spark, ["k > 1", "k > 1", "k > 2"])
    assert len(told) == 1
    assert "`where k > 2`" in told[0]
    assert spark.read.parquet(str(tmp_path / "out")).agg(f.max("n")).collect()[0][0] == 2 + 2 + 1
