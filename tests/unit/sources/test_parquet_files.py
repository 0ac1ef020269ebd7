"""What a Parquet file's footer gives away before anything is read."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.sources.contract import NOTHING, Limits
from holdfast.sources.files import Files
from holdfast.sources.fitness import Facts, Unfit
from holdfast.sources.parquet_files import parquet_facts
from holdfast.spark.schemas import schema_without_spark


def written(table: pa.Table, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    file.seek(0)
    return file


def facts(file: io.BytesIO, schema: str) -> Facts:
    declared = schema_without_spark("it", schema)
    assert declared is not None
    return parquet_facts(pa.BufferReader(file.getbuffer()), declared)


def unfit(table: pa.Table, schema: str, **options: object) -> Unfit:
    with pytest.raises(Unfit) as caught:
        facts(written(table, **options), schema)
    assert caught.value.hint
    return caught.value


def test_a_file_with_the_declared_columns_among_others_tells_its_rows() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "more": ["x", "y"], "B": ["u", "v"]})
    assert facts(written(table), "b string, a int").rows == 2


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    assert unfit(pa.table({"a": [1], "b": [2]}), "a bigint, c int").reason == (
        "it has no column 'c': its columns are a, b"
    )


@pytest.mark.parametrize(
    ("column", "declared", "reason"),
    [
        (pa.array(["x"]), "int", "is string in the file and declared as int"),
        (pa.array([2**31]), "int", "is int64 in the file and declared as int, which does not hold 2147483648"),
        (pa.array([0, -(2**31) - 1]), "int", "which does not hold -2147483649"),
        (pa.array([1.0, 2.5]), "int", "is double in the file and declared as int, which does not hold 2.5"),
        (pa.array([1.0, float("nan")]), "bigint", "which does not hold nan"),
        (pa.array([1.0]), "float", "is double in the file and declared as float"),
        (pa.array([2**53 + 1]), "double", "is int64 in the file and declared as double, which does not hold 9007199254740993"),
        (pa.array([2**24 + 1]), "float", "which does not hold 16777217"),
        (pa.array([10**9]), "decimal(10,2)", "which does not hold 1000000000"),
        (pa.array([1.5]), "decimal(10,2)", "is double in the file and declared as decimal(10,2)"),
        (pa.array([1]), "string", "is int64 in the file and declared as string"),
        (pa.array([128], pa.int16()), "tinyint", "is int16 in the file and declared as tinyint, which does not hold 128"),
        (pa.array([2**63], pa.uint64()), "bigint", "which does not hold 9223372036854775808"),
        (pa.array([1, 1001, 2000], pa.timestamp("ns")), "timestamp", "does not hold 1970-01-01 00:00:00.000000001"),
        (pa.array([1], pa.timestamp("us")), "date", "which does not hold 1970-01-01 00:00:00.000001"),
        (pa.array([1], pa.timestamp("us", "UTC")), "date", "declared as date"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamp_ntz", "declared as timestamp_ntz"),
        (pa.array([1], pa.duration("ns")), "bigint", "declared as bigint"),
        (pa.array([1], pa.int32()), "date", "is int32 in the file and declared as date"),
        (pa.array([b"x"]), "string", "is binary in the file and declared as string"),
        (pa.array([date(2026, 1, 1)]), "int", "is date32[day] in the file and declared as int"),
        (pa.array([1], pa.timestamp("us")), "bigint", "declared as bigint"),
        (pa.array([Decimal("1.55")], pa.decimal128(10, 2)), "decimal(10,1)", "declared as decimal(10,1), which does not hold 1.55"),
        (pa.array([Decimal("12345678.50")], pa.decimal128(10, 2)), "decimal(10,3)", "which does not hold 12345678.50"),
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
    ("kind", "declared", "value", "instead"),
    [
        (pa.uint8(), "tinyint", 2**8 - 1, "smallint"),
        (pa.uint16(), "smallint", 2**16 - 1, "int"),
        (pa.uint32(), "int", 2**32 - 1, "bigint"),
        (pa.uint64(), "bigint", 2**64 - 1, "decimal(20,0)"),
    ],
)
def test_an_unsigned_column_says_what_to_declare(
    kind: pa.DataType, declared: str, value: int, instead: str
) -> None:
    assert facts(written(pa.table({"c": pa.array([1], kind)})), f"c {declared}").by == "arrow"
    assert f'schema="c {instead}"' in unfit(pa.table({"c": pa.array([value], kind)}), f"c {declared}").hint


@pytest.mark.parametrize("statistics", [True, False])
def test_values_are_looked_at_where_no_statistics_tell(statistics: bool) -> None:
    table = pa.table({"c": [1, None, 2**31, 3]})
    found = unfit(table, "c int", write_statistics=statistics, row_group_size=2)
    assert "does not hold 2147483648" in found.reason
    assert facts(written(table.slice(0, 2), write_statistics=statistics), "c int").rows == 2
    assert facts(written(table.slice(1, 1), write_statistics=statistics), "c int").by == "arrow"


def test_nanoseconds_that_would_be_lost_say_how_to_write_microseconds() -> None:
    table = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})
    found = unfit(table, "at timestamp")
    assert "coerce_timestamps='us'" in found.hint
    assert "schema=" not in found.hint


def test_damage_in_a_column_that_is_looked_through_is_told() -> None:
    table = pa.table({"n": ["x"], "at": pa.array([1_000], pa.timestamp("ns"))})
    content = bytearray(
        written(table, compression="none", use_dictionary=False, write_page_checksum=True).getvalue()
    )
    start = pq.read_metadata(io.BytesIO(content)).row_group(0).column(1).data_page_offset
    content[start : start + 8] = b"\xff" * 8
    with pytest.raises(Unfit, match="column 'at' cannot be read"):
        facts(io.BytesIO(content), "n string, at timestamp")


def test_all_that_is_wrong_with_a_file_is_said_at_once_with_the_schema_that_would_do() -> None:
    table = pa.table(
        {"id": ["a"], "user": ["u"], "qty": [2**40], "price": [1.5], "took": pa.array([1], pa.duration("ns"))}
    )
    found = unfit(table, "id string, usr string, qty int, price decimal(10,2), took bigint, more string")
    assert found.reason.split("; ") == [
        "it has no column 'usr': its columns are id, user, qty, price, took",
        "column 'qty' is int64 in the file and declared as int, which does not hold 1099511627776",
        "column 'price' is double in the file and declared as decimal(10,2)",
        "column 'took' is duration[ns] in the file and declared as bigint",
        "it has no column 'more': its columns are id, user, qty, price, took",
    ]
    assert 'schema="id string, user string, qty bigint, price double"' in found.hint


def test_what_only_spark_reads_is_not_converted_beside() -> None:
    table = pa.table({"AT": pa.array([1], pa.int64()), "n": pa.array([1], pa.int64())})
    assert facts(written(table), "at bigint, n bigint").by == "spark"
    assert "cannot be converted here" in unfit(table, "at bigint, n int").reason
    old = pa.table({"at": pa.array([1], pa.timestamp("ns")), "n": pa.array([1], pa.int64())})
    found = unfit(old, "at timestamp, n int", use_deprecated_int96_timestamps=True)
    assert 'schema="at timestamp, n bigint"' in found.hint


def test_sparks_old_timestamps_are_not_taken_for_nanoseconds() -> None:
    table = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
    file = written(table, use_deprecated_int96_timestamps=True)
    assert facts(file, "at timestamp").by == "spark"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 this is not Parquet PAR1", b"id,name\n1,x\n"])
def test_what_is_no_whole_parquet_file_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(Unfit, match="it is not a whole Parquet file") as caught:
        facts(io.BytesIO(content), "a int")
    assert "rename them into the directory" in caught.value.hint


def test_files_are_read_by_arrow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Python file Arrow's threads hold buffers for a moment; an interpreter that ends then aborts."""
    read: list[object] = []

    def noted(real: Callable[[pa.NativeFile], object]) -> Callable[[pa.NativeFile], object]:
        return lambda source: (read.append(source), real(source))[1]

    monkeypatch.setattr(pq, "read_metadata", noted(pq.read_metadata))
    monkeypatch.setattr(pq, "ParquetFile", noted(pq.ParquetFile))
    pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "one.parquet")
    found = Files("it", hf.files(str(tmp_path), schema="a int"), schema_without_spark("it", "a int")).next(
        NOTHING, Limits()
    )
    assert [item.rows for item in found] == [2]
    assert len(read) == 2  # the footer, and the values, as they might not have fitted
    assert {type(source) for source in read} == {pa.OSFile}
