"""The schema of files is told from all of them, or it is said what stands in the way and what to write."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import HoldfastError, InputError, PlanError
from holdfast.flow.endpoints import files
from holdfast.ledger.source_schemas import SourceSchema
from holdfast.sources.inference import infer


def write(directory: Path, **tables: pa.Table | pd.DataFrame) -> str:
    directory.mkdir(exist_ok=True)
    for name, table in tables.items():
        if isinstance(table, pd.DataFrame):
            table.to_parquet(directory / f"{name}.parquet")
        else:
            pq.write_table(table, directory / f"{name}.parquet")
    return str(directory)


def test_a_frame_of_pandas_is_read_by_the_types_that_hold_it(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": ["a", None],
            "kind": pd.Categorical(["x", "y"]),
            "qty": [1, 2],
            "gap": [1.0, None],
            "at": pd.to_datetime(["2026-01-01", "2026-01-02"]),
            "zoned": pd.to_datetime(["2026-01-01", "2026-01-02"], utc=True),
            "day": [date(2026, 1, 1), None],
            "ok": [True, False],
            "big": pd.array([1, 2], dtype="uint64"),
            "tags": [["a"], None],
            "net price": [Decimal("1.50"), None],
        },
        index=[7, 8],
    )
    assert infer("s", files(write(tmp_path / "in", a=frame[frame.qty > 1], b=frame))) == SourceSchema(
        "id string, kind string, qty bigint, gap double, at timestamp, zoned timestamp, day date, ok boolean,"
        " big decimal(20,0), tags array<string>, `net price` decimal(3,2)",
        2,
    )


def test_several_files_have_the_type_that_holds_all_of_them(tmp_path: Path) -> None:
    one = pa.table(
        {
            "i": pa.array([1], pa.int16()),
            "f": pa.array([1], pa.float32()),
            "d": pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
            "n": pa.nulls(1),
        }
    )
    two = pa.table(
        {
            "i": pa.array([1], pa.int64()),
            "f": pa.array([1], pa.float64()),
            "d": pa.array([Decimal("1.25")], pa.decimal128(4, 3)),
            "n": ["x"],
        }
    )
    found = infer("s", files(write(tmp_path / "in", a=one, b=two)))
    assert found.ddl == "i bigint, f double, d decimal(7,3), n string"


def test_all_that_stands_in_the_way_is_told_with_a_schema_to_start_from(tmp_path: Path) -> None:
    one = pa.table({"id": ["a"], "gap": [1], "none": pa.nulls(1), "took": pa.array([1], pa.duration("ns"))})
    two = pa.table({"id": ["a"], "gap": [1.5], "none": pa.nulls(1), "more": [1]})
    with pytest.raises(PlanError) as caught:
        infer("s", files(write(tmp_path / "in", a=one, b=two)))
    assert caught.value.message == (
        "the schema of source 's' cannot be inferred: column 'took' is duration[ns] in a.parquet, which Spark has no type for;"
        " column 'gap' is int64 in a.parquet and double in b.parquet; b.parquet has a column 'more', which the files before it"
        " do not have; column 'none' holds nothing but nulls in every file"
    )
    assert 'schema="id string, gap bigint, none string, more bigint"' in str(caught.value.hint)


def failure(path: Path, **options: str) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        infer("s", files(str(path), **options))  # type: ignore[arg-type]
    return caught.value


def test_an_empty_directory_and_a_missing_one_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    empty, gone = failure(tmp_path / "in"), failure(tmp_path / "gone")
    assert isinstance(empty, InputError)
    assert isinstance(gone, InputError)
    assert "holds no file to infer it from" in empty.message
    assert "Put the first file there, or write the columns" in str(empty.hint)
    assert "No such file or directory" in gone.message


def test_a_file_that_cannot_be_read_is_told_or_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a=pa.table({"a": [1]}))
    (tmp_path / "in" / "b.parquet").write_bytes(b"rubbish")
    assert "b.parquet: it is not a whole Parquet file" in failure(tmp_path / "in").message
    assert infer("s", files(path, on_error="quarantine")) == SourceSchema("a bigint", 1)


def test_text_is_not_guessed_but_a_schema_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("id;qty;at\nx;1;2026-01-01 00:00:00\n")
    found = failure(tmp_path / "csv", format="csv", separator=";")
    assert "CSV files do not say which types they hold" in found.message
    assert 'a.csv looks like schema="id string, qty bigint, at timestamp"' in str(found.hint)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json").write_text('{"id": "x", "tags": ["a"]}\n{"id": "y"')
    found = failure(tmp_path / "json", format="json")
    assert 'schema="id string, tags array<string>"' in str(found.hint)
    (tmp_path / "json" / "a.json").write_text("rubbish")
    assert 'Write it as schema="id string' in str(failure(tmp_path / "json", format="json").hint)
