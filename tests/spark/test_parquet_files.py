"""What a Parquet file's footer gives away before anything is read."""

from __future__ import annotations

import io
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t

from holdfast.sources.fitness import Unfit
from holdfast.sources.parquet_files import parquet_facts

# A schema is parsed by Spark.
pytestmark = pytest.mark.usefixtures("spark")


def written(table: pa.Table, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    file.seek(0)
    return file


def unfit(table: pa.Table, schema: str) -> Unfit:
    with pytest.raises(Unfit) as caught:
        parquet_facts(written(table), t.StructType.fromDDL(schema))  # type: ignore[arg-type]
    assert caught.value.hint
    return caught.value


def test_a_file_with_the_declared_columns_among_others_tells_its_rows() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "more": ["x", "y"], "B": ["u", "v"]})
    declared = t.StructType.fromDDL("b string, a int")
    assert parquet_facts(written(table), declared).rows == 2  # type: ignore[arg-type]


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    assert unfit(pa.table({"a": [1], "b": [2]}), "a bigint, c int").reason == (
        "it has no column 'c': its columns are a, b"
    )


@pytest.mark.parametrize(
    ("column", "declared", "reason"),
    [
        (pa.array(["x"]), "int", "is string in the file and declared as int"),
        (pa.array([1]), "int", "is int64 in the file and declared as int"),
        (pa.array([1]), "string", "is int64 in the file and declared as string"),
        (pa.array([1]), "double", "is int64 in the file and declared as double"),
        (pa.array([1], pa.int16()), "tinyint", "is int16 in the file and declared as tinyint"),
        (pa.array([1], pa.int32()), "date", "is int32 in the file and declared as date"),
        (pa.array([b"x"]), "string", "is binary in the file and declared as string"),
        (pa.array([date(2026, 1, 1)]), "int", "is date32[day] in the file and declared as int"),
        (pa.array([1], pa.timestamp("us")), "bigint", "declared as bigint"),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), "decimal(10,1)", "declared as decimal(10,1)"),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), "decimal(10,3)", "declared as decimal(10,3)"),
        (pa.array([[1]]), "array<int>", "declared as array<int>"),
        (pa.array([{"a": 1}]), "struct<b: bigint>", "declared as struct<b:bigint>"),
        (pa.array([1]), "struct<a: bigint>", "declared as struct<a:bigint>"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string,int>", "declared as map<string,int>"),
    ],
)  # fmt: skip
def test_another_type_names_the_column_and_both_types(column: pa.Array, declared: str, reason: str) -> None:
    found = unfit(pa.table({"c": column}), f"c {declared}").reason
    assert found.startswith("column 'c' ")
    assert reason in found


@pytest.mark.parametrize(
    ("kind", "declared", "instead"),
    [
        (pa.uint8(), "tinyint", "smallint"),
        (pa.uint16(), "smallint", "int"),
        (pa.uint32(), "int", "bigint"),
        (pa.uint32(), "double", "bigint"),
        (pa.uint64(), "bigint", "decimal(20,0)"),
    ],
)
def test_an_unsigned_column_says_what_to_declare(kind: pa.DataType, declared: str, instead: str) -> None:
    assert f"Declare it as {instead}," in unfit(pa.table({"c": pa.array([1], kind)}), f"c {declared}").hint


def test_nanoseconds_name_the_column_and_how_to_write_microseconds() -> None:
    table = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})
    found = unfit(table, "at timestamp")
    assert found.reason == "column 'at' holds timestamps in nanoseconds, which Spark does not read"
    assert "coerce_timestamps='us'" in found.hint


def test_sparks_old_timestamps_are_not_taken_for_nanoseconds() -> None:
    table = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
    file = written(table, use_deprecated_int96_timestamps=True)
    assert parquet_facts(file, t.StructType.fromDDL("at timestamp")).rows == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 this is not Parquet PAR1", b"id,name\n1,x\n"])
def test_what_is_no_whole_parquet_file_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(Unfit, match="it is not a whole Parquet file") as caught:
        parquet_facts(io.BytesIO(content), t.StructType.fromDDL("a int"))  # type: ignore[arg-type]
    assert "rename them into the directory" in caught.value.hint
