"""What pandas and others write is read as declared where no value changes, both ways, and told where one would."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import holdfast as hf
from batch import assert_same_rows, assert_way, digests, last_per_key, read_sink
from holdfast.core.errors import InputError
from holdfast.flow.ddl import columns_of
from holdfast.flow.endpoints import files
from holdfast.sources.contract import NOTHING, Limits
from holdfast.sources.files import BY, Files
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.direct import DirectFile, _row_groups
from holdfast.spark.schemas import schema_without_spark

NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001
NOON_UTC = NOON.replace(tzinfo=UTC)
MIDNIGHT = datetime(2026, 1, 1)  # noqa: DTZ001


def category(values: list[object], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode()


# What a file holds, what is declared, and what a row then is; null stays null in all of them.
BY_SPARK_TOO = [
    (pa.array([7, None], pa.int32()), "bigint", 7),
    (pa.array([7, None], pa.uint32()), "bigint", 7),
    (pa.array([7, None], pa.int16()), "int", 7),
    (pa.array([7, None], pa.int32()), "double", 7.0),
    (pa.array([1.5, None], pa.float32()), "double", 1.5),
    (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), "decimal(20,4)", Decimal("1.5000")),
    (pa.array([NOON, None], pa.timestamp("us")), "timestamp", NOON_UTC),
    (pa.array([NOON, None], pa.timestamp("ms")), "timestamp", NOON_UTC),
    (pa.array([NOON_UTC, None], pa.timestamp("ms", "Europe/Paris")), "timestamp", NOON_UTC),
    (pa.array([NOON, None], pa.timestamp("ms")), "timestamp_ntz", NOON),
    (pa.array(["a", None], pa.large_string()), "string", "a"),
    (pa.array(["a", None], pa.string_view()), "string", "a"),
    (category(["a", None], pa.string()), "string", "a"),
    (category([7, None], pa.int64()), "bigint", 7),
    (pa.array([b"ab", None], pa.large_binary()), "binary", b"ab"),
    (pa.array([b"ab", None], pa.binary(2)), "binary", b"ab"),
    (pa.array([date(2026, 1, 1), None], pa.date64()), "date", date(2026, 1, 1)),
    (pa.array([True, None]), "boolean", True),
]
BY_ARROW = [
    (pa.array([2**31 - 1, None], pa.int64()), "int", 2**31 - 1),
    (pa.array([-128, None], pa.int64()), "tinyint", -128),
    (pa.array([7, None], pa.uint64()), "bigint", 7),
    (pa.array([2**53, None], pa.int64()), "double", float(2**53)),
    (pa.array([2**24, None], pa.int64()), "float", float(2**24)),
    (pa.array([3.0, None], pa.float64()), "int", 3),
    (pa.array([-0.0, None], pa.float64()), "bigint", 0),
    (pa.array([7, None], pa.int64()), "decimal(10,2)", Decimal("7.00")),
    (pa.array([Decimal("1.5000"), None], pa.decimal128(20, 4)), "decimal(5,2)", Decimal("1.50")),
    (pa.array([NOON, None], pa.timestamp("ns")), "timestamp", NOON_UTC),
    (pa.array([NOON_UTC, None], pa.timestamp("ns", "Europe/Paris")), "timestamp", NOON_UTC),
    (pa.array([NOON, None], pa.timestamp("ns")), "timestamp_ntz", NOON),
    (pa.array([MIDNIGHT, None], pa.timestamp("ns")), "date", date(2026, 1, 1)),
    (category([7, None], pa.int64()), "int", 7),
    (pa.nulls(2), "string", None),
    (pa.nulls(2), "timestamp", None),
    (pa.nulls(2), "decimal(10,2)", None),
]


@pytest.mark.parametrize(("cases", "by"), [(BY_SPARK_TOO, "either"), (BY_ARROW, "arrow")])
def test_both_ways_in_read_a_type_that_loses_nothing_as_declared(
    spark: SparkSession, tmp_path: Path, cases: list[tuple[pa.Array, str, object]], by: str
) -> None:
    names = [f"c{i}" for i in range(len(cases))]
    schema = ", ".join(f"{name} {ddl}" for name, (_, ddl, _) in zip(names, cases, strict=True))
    (tmp_path / "in").mkdir()
    table = pa.table([column for column, _, _ in cases], names=names)
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=1)
    source = Files("s", files(str(tmp_path / "in"), schema=schema))
    items = source.next(NOTHING, Limits())
    assert items[0].body[BY] == by
    assert source.direct(items)
    declared = arrow_schema("s", source.schema())
    expected = pa.table(
        [pa.array([value, None], declared.field(i).type) for i, (_, _, value) in enumerate(cases)], declared
    )
    through_spark = source.read(spark, items).toArrow().cast(declared)
    directly = pa.concat_tables(
        _row_groups(DirectFile(str(tmp_path / "in/a.parquet"), 0, 0, None, declared), declared.names)
    )
    assert through_spark.sort_by([("c0", "ascending")]).to_pydict() == expected.to_pydict()
    assert directly.schema == declared
    assert directly.to_pydict() == expected.to_pydict()


def test_a_schema_read_without_spark_is_the_one_that_spark_reads(spark: SparkSession) -> None:
    ddl = (
        "a: INT, `b-c` decimal, d numeric(5), e array<struct<x: long, y map<string, real>>> not null, f timestamp_ntz,\
           g byte comment 'x, y', h timestamp, i boolean, j short, k double, l date, m binary"
    )
    found = schema_without_spark("it", ddl)
    assert found is not None
    assert found.simpleString() == t.DataType.fromDDL(ddl).simpleString()
    assert t.DataType.fromDDL(str(columns_of("it", ddl))).simpleString() == found.simpleString()
    for rare in (
        "a interval day to second",
        "a string collate unicode",
        "a variant",
        "a time(3)",
        "a varchar(3)",
    ):
        t.DataType.fromDDL(rare)
        assert schema_without_spark("it", rare) is None


def frame(first: int, **more: object) -> pd.DataFrame:
    """Orders as a program with pandas has them: int64, a whole column of floats because of a gap, naive nanoseconds."""
    numbers = range(first, first + 6)
    return pd.DataFrame(
        {
            "id": [f"o{n}" for n in numbers],
            "user": pd.Categorical([f"u{n % 3}" for n in numbers]),
            "qty": [n % 4 for n in numbers],
            "gap": [None if n % 3 == 0 else n for n in numbers],
            "note": None,
            "ts": pd.to_datetime([NOON] * 6) + pd.to_timedelta(list(numbers), unit="min"),
            **more,
        }
    )


SCHEMA = "id string, user string, qty int, gap bigint, note string, ts timestamp"


def orders(home: Path, name: str, **options: object) -> hf.Flow:
    flow = hf.Flow("orders")
    source = hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1, **options)  # type: ignore[arg-type]
    rows = flow.source("orders", source)
    aggregates = {
        "n": hf.count(),
        "qty": hf.sum("qty"),
        "gap": hf.max("gap"),
        "ts": hf.max("ts"),
        "note": hf.max("note"),
    }
    rows.group_by("user").agg(**aggregates).named("totals").to(hf.parquet(str(home / name / "totals")))
    if options:
        rows.quarantine_to(hf.parquet(str(home / name / "aside")))
    return flow


def test_files_of_pandas_beside_others_give_what_spark_gives_both_ways(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame(0).to_parquet(tmp_path / "in" / "0.parquet")
    frame(6).to_parquet(tmp_path / "in" / "1.parquet")
    exact = pa.Table.from_pandas(frame(12)).cast(arrow_schema("s", schema_without_spark("s", SCHEMA)))  # type: ignore[arg-type]
    pq.write_table(exact, tmp_path / "in" / "2.parquet")
    for way in ("spark", "direct"):
        flow = orders(tmp_path, way)
        flow.run(tmp_path / f"work-{way}", until_idle=True, spark=spark, tasks=2, direct=way == "direct")
        assert_way(tmp_path / f"work-{way}", "totals", way)
    assert digests(tmp_path / "work-spark", "totals") == digests(tmp_path / "work-direct", "totals")
    everything = pd.concat([frame(0), frame(6), frame(12)]).astype(
        {"gap": "Int64", "user": "string", "note": "string"}
    )
    everything["ts"] = everything["ts"].dt.tz_localize("UTC")
    spark.createDataFrame(everything).createOrReplaceTempView("orders")
    expected = spark.sql(
        "select user, count(1) n, sum(qty) qty, max(gap) gap, max(ts) ts, max(note) note from orders group by user"
    )
    assert_same_rows(last_per_key(spark, tmp_path / "direct" / "totals", ["user"]), expected)


def test_a_value_that_does_not_fit_stops_the_flow_or_sets_the_file_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame(0, qty=[1, 2, 3, 4, 5, 2**31]).to_parquet(tmp_path / "in" / "0.parquet")
    frame(6, gap=[1.0, 2.5, None, 1.0, 1.0, 1.0]).to_parquet(tmp_path / "in" / "1.parquet")
    frame(12).to_parquet(tmp_path / "in" / "2.parquet")
    with pytest.raises(InputError) as caught:
        orders(tmp_path, "stops").run(tmp_path / "work", until_idle=True, spark=spark)
    assert (
        "0.parquet: column 'qty' is int64 in the file and declared as int, which does not hold 2147483648"
        in str(caught.value)
    )
    assert 'schema="id string, user string, qty bigint, gap bigint, note string, ts timestamp"' in str(
        caught.value.hint
    )
    orders(tmp_path, "on", on_error="quarantine").run(tmp_path / "work", until_idle=True, spark=spark)
    aside = read_sink(tmp_path / "on" / "aside").sort_by("file")
    assert aside["file"].to_pylist() == ["0.parquet", "1.parquet"]
    assert "does not hold 2.5" in aside["reason"].to_pylist()[1]
    assert last_per_key(spark, tmp_path / "on" / "totals", ["user"]).toPandas()["n"].sum() == 6


def test_a_schema_that_is_changed_judges_files_anew_that_nobody_has_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": [1], "v": [2**40]}), tmp_path / "in" / "0.parquet")
    wide = Files("s", files(str(tmp_path / "in"), schema="k bigint, v bigint"))
    items = wide.next(NOTHING, Limits())
    assert wide.as_found(items[0]) is items[0]
    with pytest.raises(InputError, match="does not hold 1099511627776"):
        Files("s", files(str(tmp_path / "in"), schema="k bigint, v int")).as_found(items[0])
    other = Files("s", files(str(tmp_path / "in"), schema="k int, v bigint")).as_found(items[0])
    assert (items[0].body[BY], other.body[BY]) == ("either", "arrow")
