"""Delta tables as sources."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from holdfast.core.errors import InputError, PlanError
from holdfast.flow.lake import delta_source
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import NOTHING, Limits, Taken
from holdfast.sources.delta import Delta
from holdfast.spark.session import make_session
from holdfast.testing import Origin, SourceSuite
from holdfast.testing.sources import SCHEMA


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("tests", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


class TestDeltaSource(SourceSuite):
    def origin(self, place: Path) -> Origin:
        DeltaTable.create(str(place), SCHEMA)
        description = delta_source(str(place))
        return Origin(lambda: Delta("s", description), lambda rows: append(place, rows))


class TestPartitionedDeltaSource(SourceSuite):
    texts = (None, "a,b\t'c'\n\"d\"", "\U0001f40b", "x y/%=:?#[{ü")  # an empty value of a partition is null

    def origin(self, place: Path) -> Origin:
        DeltaTable.create(str(place), SCHEMA, partition_by=["text"])
        description = delta_source(str(place))
        return Origin(lambda: Delta("s", description), lambda rows: append(place, rows))


def append(table: Path, rows: pa.Table) -> None:
    write_deltalake(str(table), rows, mode="append")


def numbers(*values: int) -> pa.Table:
    return pa.table([values, [f"t{value}" for value in values]], schema=SCHEMA)


def taken(*items: Item) -> Taken:
    return Taken(len(items), items[-1] if items else None, 0, frozenset(item.identity for item in items))


def looked(table: Path, *before: Item, most: int = 1000, **options) -> list[Item]:
    """What a process finds that has just been started."""
    return Delta("s", delta_source(str(table), **options)).next(taken(*before), Limits(most))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions with a file each, after the one that made it."""
    path = tmp_path / "table"
    DeltaTable.create(str(path), SCHEMA)
    for value in range(3):
        append(path, numbers(value, value + 10))
    return path


# What comes, and in which order


def test_what_the_table_holds_comes_first_then_what_is_appended(table: Path) -> None:
    held = looked(table)
    assert [item.rows for item in held] == [2, 2, 2]
    assert {item.body["version"] for item in held} == {3}
    append(table, numbers(7))
    append(table, numbers(8, 9))
    assert [(item.body["version"], item.rows) for item in looked(table, *held)] == [(4, 1), (5, 2)]


def test_a_look_that_brought_a_part_goes_on_behind_it(table: Path) -> None:
    whole = looked(table)
    found: list[Item] = []
    for _ in range(3):
        found += looked(table, *found, most=1)
        append(table, numbers(99))  # no part of what the table held at first
    assert found == whole
    assert len(looked(table, *found)) == 3


def test_files_of_one_version_come_in_the_order_of_the_log_whatever_the_looks(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable.create(str(path), SCHEMA, partition_by=["n"])
    append(path, numbers(*range(5)))
    whole = looked(path, start=1)
    found: list[Item] = []
    for _ in range(3):
        found += looked(path, *found, most=2, start=1)
    assert found == whole
    assert len(whole) == 5


def test_latest_is_written_down_so_that_a_crash_does_not_move_it(table: Path) -> None:
    first = looked(table, start="latest")
    assert [(item.rows, item.body["version"]) for item in first] == [(0, 3)]
    append(table, numbers(7))
    assert [item.body["version"] for item in looked(table, *first, start="latest")] == [4]


def test_a_version_to_start_with_is_read_too(table: Path) -> None:
    assert [item.body["version"] for item in looked(table, start=2)] == [2, 3]
    assert looked(table, start=4) == []


def test_rows_are_read_as_they_were_written(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "table"
    rows = pa.table(
        {
            "n": [1, 2],
            "day": [date(2024, 2, 29), None],
            "at": pa.array([datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "yes": [True, None],
            "small": pa.array([-7, None], pa.int16()),
            "inside": [{"a": [1]}, None],
        }
    )
    names = ["day", "at", "price", "yes", "small"]
    for partition_by in (None, names):
        shutil.rmtree(path, ignore_errors=True)
        write_deltalake(str(path), rows, partition_by=partition_by)
        held = looked(path)
        append(path, rows)
        source = Delta("s", delta_source(str(path)))
        # Both as the table holds them at first, and as the log adds them.
        for items in (held, looked(path, *held)):
            found = source.read(spark, items).toArrow().sort_by("n")
            assert found.to_pylist() == rows.to_pylist()
        assert not source.direct(held)  # partitioned, or with names inside of nested columns that differ


def test_files_with_exactly_the_columns_may_be_read_by_tasks_themselves(table: Path) -> None:
    items = [*looked(table, start="latest"), *looked(table)]
    source = Delta("s", delta_source(str(table)))
    assert source.direct(items)
    assert all(path.is_file() for path in source.checked(items))
    assert len(source.checked(items)) == 3


def test_a_table_elsewhere_is_read_by_its_address(table: Path, spark: SparkSession) -> None:
    """By the same way as one in a store of objects: the log through deltalake, the files through Spark."""
    source = Delta("s", delta_source(f"file://{table}"))
    held = source.next(NOTHING, Limits())
    assert [item.rows for item in held] == [2, 2, 2]
    assert source.next(taken(*held), Limits()) == []
    append(table, numbers(7))
    new = source.next(taken(*held), Limits())
    assert [item.rows for item in new] == [1]
    assert not source.direct(new)
    assert source.read(spark, [*held, *new]).count() == 7
    Path(table, new[0].body["path"]).unlink()
    with pytest.raises(InputError, match="is gone"):
        source.read(spark, new)


# Versions that do not only add


def test_compaction_and_what_has_no_rows_brings_nothing(table: Path, spark: SparkSession) -> None:
    held = looked(table)
    claim = CommitProperties(app_transactions=[Transaction("a", 1)])
    DeltaTable(str(table)).create_write_transaction([], "append", SCHEMA, commit_properties=claim)
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).alter.set_table_properties({"x": "y"}, raise_if_not_exists=False)
    source = Delta("s", delta_source(str(table)))
    assert list(source.next(taken(*held), Limits())) == []
    append(table, numbers(7))
    assert [item.rows for item in source.next(taken(*held), Limits())] == [1]
    # The files that were compacted are there until a vacuum.
    assert source.read(spark, held).count() == 6


@pytest.mark.parametrize("change", ["delete", "update", "overwrite"])
def test_a_version_that_changes_rows_stops_the_flow_or_is_passed_over(table: Path, change: str) -> None:
    held = looked(table)
    match change:
        case "delete":
            DeltaTable(str(table)).delete("n = 1")
        case "update":
            DeltaTable(str(table)).update({"text": "'u'"}, predicate="n = 1")
        case _:
            write_deltalake(str(table), numbers(5), mode="overwrite")
    append(table, numbers(7))
    with pytest.raises(InputError, match="version 4 deletes or changes rows"):
        looked(table, *held)
    assert [item.body["version"] for item in looked(table, *held, on_change="skip")] == [5]
    assert looked(table)  # who starts anew reads the table as it is


# What is gone or cannot be read


def test_a_file_that_a_vacuum_removed_is_missed_with_what_to_do(table: Path, spark: SparkSession) -> None:
    held = looked(table)
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    source = Delta("s", delta_source(str(table)))
    with pytest.raises(InputError, match="is gone") as raised:
        source.read(spark, held)
    assert "deletedFileRetentionDuration" in str(raised.value)
    with pytest.raises(InputError, match="is gone"):
        source.checked(held)
    with pytest.raises(InputError, match="is gone"):
        looked(table, start=0)


def test_a_log_that_was_cleaned_up_before_it_was_read_is_missed(table: Path) -> None:
    held = looked(table)
    for value in range(2):
        append(table, numbers(value))
    DeltaTable(str(table)).create_checkpoint()
    append(table, numbers(7))
    for version in range(5):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InputError, match="version 4 is gone from the log"):
        looked(table, *held)
    with pytest.raises(InputError, match="version 0 is gone from the log"):
        looked(table, start=0)


def test_a_table_whose_old_logs_are_gone_is_waited_for(table: Path) -> None:
    held = looked(table)
    DeltaTable(str(table)).create_checkpoint()
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert looked(table, *held) == []
    append(table, numbers(7))
    assert [item.rows for item in looked(table, *held)] == [1]


def test_a_new_column_stops_a_flow_that_runs_and_is_taken_by_the_next_run(
    table: Path, spark: SparkSession
) -> None:
    running = Delta("s", delta_source(str(table)))
    assert running.schema().names == ["n", "text"]
    held = running.next(NOTHING, Limits())
    DeltaTable(str(table)).alter.add_columns([Field("more", PrimitiveType("long"))])
    append(table, numbers(7).append_column("more", pa.array([1])))
    with pytest.raises(InputError, match="other columns .* more bigint"):
        running.next(taken(*held), Limits())
    source = Delta("s", delta_source(str(table)))
    new = source.next(taken(*held), Limits())
    rows = source.read(spark, [*held, *new]).toArrow()
    assert sorted(rows["more"].to_pylist(), key=str) == [1, *[None] * 6]
    assert not source.direct(held)


def test_what_only_a_delta_reader_understands_is_refused(table: Path, tmp_path: Path) -> None:
    mapped = tmp_path / "mapped"
    shutil.copytree(table, mapped)
    first = mapped / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
        if "protocol" in line:
            line["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    first.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError, match="columnMapping"):
        looked(mapped, start=0)
    held = looked(table)
    action = {
        "path": "x.parquet",
        "size": 1,
        "partitionValues": {},
        "modificationTime": 0,
        "dataChange": True,
    }
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    (table / "_delta_log" / f"{4:020d}.json").write_text(
        json.dumps({"add": {**action, "deletionVector": vector}})
    )
    with pytest.raises(InputError, match="a deletion vector"):
        looked(table, *held)


def test_where_there_is_no_table_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no Delta table"):
        Delta("s", delta_source(str(tmp_path / "none"))).schema()


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "newest"},
        {"start": -1},
        {"start": True},
        {"on_change": "ignore"},
        {"max_files_per_epoch": 0},
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        delta_source("t", **wrong)  # type: ignore[arg-type]
