"""What the Parquet sink publishes, what it refuses, and what it finds when it is opened again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import FencedError, SinkError
from holdfast.sinks.parquet import ParquetSink
from holdfast.testing.epochs import (
    FLOW,
    SCHEMA,
    expected,
    feed,
    record,
    rows,
    segments,
)
from unit.sinks.kinds import files_visible as visible


def hidden(target: Path) -> Path:
    return target.parent / f".{target.name}.holdfast"


def test_epochs_are_directories_and_readers_get_them_as_a_column(target: Path, directory: Path) -> None:
    feed(ParquetSink(target), directory, generation=1)
    assert sorted(os.listdir(target)) == ["epoch=00000000", "epoch=00000002", "epoch=00000004"]
    assert sorted(os.listdir(target / "epoch=00000002")) == [
        "_holdfast.json", "part-00000.parquet", "part-00001.parquet",
    ]  # fmt: skip
    read = ds.dataset(target, partitioning="hive").to_table()
    assert sorted(zip(read["epoch"].to_pylist(), read["value"].to_pylist(), strict=True)) == [
        (value // 10, value) if value >= 10 else (0, value) for value in expected()
    ]


def test_published_files_are_the_segments_themselves(target: Path, directory: Path) -> None:
    feed(ParquetSink(target), directory, generation=1)
    part = target / "epoch=00000000" / "part-00000.parquet"
    assert os.path.samefile(part, segments(directory, 0)[0])


def test_a_single_file_holds_all_rows_of_its_epoch_and_its_record(target: Path, directory: Path) -> None:
    feed(ParquetSink(target, single_file=True), directory, generation=1)
    assert sorted(os.listdir(target)) == [f"epoch-0000000{epoch}.parquet" for epoch in (0, 2, 4)]
    path = target / "epoch-00000002.parquet"
    assert pq.read_table(path, partitioning=None).replace_schema_metadata(None) == rows([20, 21, 22])
    metadata = pq.read_metadata(path)
    assert json.loads(metadata.metadata[b"holdfast"]) == record(2).to_json()
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert pq.read_schema(path).equals(SCHEMA)


def test_nothing_but_whole_epochs_lies_in_the_target(
    target: Path, directory: Path, single_file: bool
) -> None:
    feed(ParquetSink(target, single_file), directory, generation=1)
    assert visible(target) == expected()
    claims = os.listdir(hidden(target))
    assert len(claims) == 1
    assert os.listdir(hidden(target) / claims[0] / "staging") == []


def test_an_epoch_without_rows_moves_only_the_record(target: Path, directory: Path) -> None:
    feed(ParquetSink(target), directory, generation=1, until=2)
    assert os.listdir(target) == ["epoch=00000000"]
    assert ParquetSink(target).open(FLOW, 0, 2) == record(1)


def test_an_older_generation_cannot_open_the_target(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    feed(sink, directory, generation=3)
    assert sink.newest_generation() == 3
    with pytest.raises(FencedError, match="by generation 3"):
        ParquetSink(target).open(FLOW, 0, 2)
    shutil.rmtree(hidden(target))
    with pytest.raises(FencedError, match="by generation 3"):
        ParquetSink(target).open(FLOW, 0, 2)


def test_without_the_hidden_directory_the_record_is_found_in_the_epochs(
    target: Path, directory: Path, single_file: bool
) -> None:
    feed(ParquetSink(target, single_file), directory, generation=1)
    shutil.rmtree(hidden(target))
    sink = ParquetSink(target, single_file)
    assert sink.open(FLOW, 0, 1) == record(4)


def test_a_hidden_directory_that_vanishes_stops_the_sink_and_a_new_opening_heals_it(
    target: Path, directory: Path
) -> None:
    sink = ParquetSink(target)
    feed(sink, directory, generation=1, until=2)
    shutil.rmtree(hidden(target))
    with pytest.raises(SinkError, match="is gone"):
        sink.publish(record(2), segments(directory, 2))
    assert visible(target) == expected(until=2)
    assert feed(sink, directory, generation=1) == record(0)
    assert visible(target) == expected()


def test_epochs_that_a_consumer_took_away_stay_published(target: Path, directory: Path) -> None:
    feed(ParquetSink(target), directory, generation=1, until=3)
    shutil.rmtree(target / "epoch=00000000")
    shutil.rmtree(target / "epoch=00000002")
    assert ParquetSink(target).open(FLOW, 0, 2) == record(2)


def test_a_target_that_is_gone_stops_with_the_ways_out(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    feed(sink, directory, generation=1, until=3)
    shutil.rmtree(target)
    with pytest.raises(SinkError, match="cannot be written"):
        sink.publish(record(3), segments(directory, 2))
    with pytest.raises(SinkError, match="published up to epoch 2") as caught:
        sink.open(FLOW, 0, 1)
    assert str(hidden(target)) in str(caught.value.hint)
    target.mkdir()
    assert sink.open(FLOW, 0, 1) == record(2)


def test_an_epoch_that_holdfast_did_not_publish_is_not_taken_for_one(target: Path, directory: Path) -> None:
    feed(ParquetSink(target), directory, generation=1)
    (target / "epoch=00000009").mkdir()
    with pytest.raises(SinkError, match="not its record"):
        ParquetSink(target).open(FLOW, 0, 2)
    (target / "epoch=00000009").rmdir()
    shutil.copytree(target / "epoch=00000004", target / "epoch=00000009")
    with pytest.raises(SinkError, match="not its record"):
        ParquetSink(target).open(FLOW, 0, 2)


def test_a_name_that_something_else_took_is_not_replaced(
    target: Path, directory: Path, single_file: bool
) -> None:
    sink = ParquetSink(target, single_file)
    feed(sink, directory, generation=1, until=2)
    (target / ("epoch-00000002.parquet" if single_file else "epoch=00000002")).mkdir()
    with pytest.raises(SinkError, match="not its record"):
        sink.publish(record(2), segments(directory, 2))
    assert visible(target) == expected(until=2)


def test_segments_of_two_schemas_are_not_made_into_one_file(target: Path, directory: Path) -> None:
    other = directory / "other.parquet"
    pq.write_table(pa.table({"value": ["text"]}), other)
    sink = ParquetSink(target, single_file=True)
    sink.open(FLOW, 0, 1)
    with pytest.raises(SinkError, match="differ in schema"):
        sink.publish(record(0), [*segments(directory, 0), other])
    assert os.listdir(target) == []


def test_the_file_system_root_is_no_target() -> None:
    with pytest.raises(SinkError, match="cannot be a target"):
        ParquetSink("/")
