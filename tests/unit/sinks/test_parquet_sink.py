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

from holdfast.core.errors import FencedError, SinkError, StorageError
from holdfast.sinks.contract import Sink
from holdfast.sinks.parquet import ParquetSink
from unit.sinks.feeding import (
    FLOW,
    SCHEMA,
    expected,
    feed,
    publish_after,
    record,
    rows,
    segments,
    snapshot,
    visible,
)


def hidden(target: Path) -> Path:
    return target.parent / f".{target.name}.holdfast"


def test_it_keeps_the_contract(target: Path) -> None:
    sink: Sink = ParquetSink(target)
    assert sink.open(FLOW, 0, 1) is None
    sink.close()


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


def test_a_replayed_epoch_is_there_already(target: Path, directory: Path, single_file: bool) -> None:
    sink = ParquetSink(target, single_file)
    feed(sink, directory, generation=1, until=3)
    before = snapshot(target)
    sink.publish(record(2), segments(directory, 2))
    successor = ParquetSink(target, single_file)
    assert successor.open(FLOW, 0, 2) == record(2)
    successor.publish(record(2, generation=2), segments(directory, 2))
    assert snapshot(target) == before
    publish_after(successor, record(2), directory, generation=2)
    assert visible(target) == expected()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epoch": 4}, "gap"),
        ({"epoch": 1}, "number alone"),
        ({"epoch": 2, "branch": 1}, "reuse the number 2"),
        ({"epoch": 1, "branch": 1}, "reuse the number 1"),
        ({"epoch": 2, "revision": 1}, "revision 1"),
        ({"epoch": 3, "branch": 2}, "for branch 1"),
        ({"epoch": 3, "generation": 2}, "of generation 2"),
        ({"epoch": 3, "flow": "clicks"}, "belongs to the flow"),
    ],
)
def test_only_the_successor_is_published(
    target: Path, directory: Path, single_file: bool, change: dict, why: str
) -> None:
    feed(ParquetSink(target, single_file), directory, generation=1, until=3)
    sink = ParquetSink(target, single_file)
    sink.open(FLOW, 1, 1)
    before = snapshot(target)
    with pytest.raises(SinkError, match=why):
        sink.publish(record(**change), segments(directory, 4))
    assert snapshot(target) == before


def test_a_sink_added_later_starts_where_it_was_told_to_at_first(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    assert sink.open(FLOW, 0, 1, start=4) is None
    assert sink.open(FLOW, 0, 2, start=3) is None
    with pytest.raises(SinkError, match="waits for epoch 4"):
        sink.publish(record(3, generation=2), [])
    sink.publish(record(4, generation=2), segments(directory, 4))
    assert ParquetSink(target).open(FLOW, 0, 3) == record(4, generation=2)


def test_a_target_of_another_flow_is_refused_and_its_owner_goes_on(target: Path, directory: Path) -> None:
    owner = ParquetSink(target)
    owner.open(FLOW, 0, 1)
    with pytest.raises(SinkError, match="belongs to the flow 'orders'"):
        ParquetSink(target).open("clicks", 0, 7)
    publish_after(owner, None, directory, generation=1)
    assert visible(target) == expected()


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


def test_a_lost_or_torn_segment_is_named_as_our_own_fault(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    sink.open(FLOW, 0, 1)
    torn = directory / "torn.parquet"
    torn.write_bytes(segments(directory, 0)[0].read_bytes()[:-9])
    for path in (torn, directory / "lost.parquet"):
        with pytest.raises(StorageError, match=path.name):
            sink.publish(record(0), [path])
    assert os.listdir(target) == []


def test_a_column_that_readers_would_not_see_is_refused(target: Path, directory: Path) -> None:
    clash = directory / "clash.parquet"
    pq.write_table(pa.table({"Epoch": [1]}), clash)
    sink = ParquetSink(target)
    sink.open(FLOW, 0, 1)
    with pytest.raises(SinkError, match="'epoch'"):
        sink.publish(record(0), [clash])
    one = ParquetSink(target, single_file=True)
    one.open(FLOW, 0, 1)
    one.publish(record(0), [clash])
    assert pq.read_table(target)["Epoch"].to_pylist() == [1]


def test_segments_of_two_schemas_are_not_made_into_one_file(target: Path, directory: Path) -> None:
    other = directory / "other.parquet"
    pq.write_table(pa.table({"value": ["text"]}), other)
    sink = ParquetSink(target, single_file=True)
    sink.open(FLOW, 0, 1)
    with pytest.raises(SinkError, match="differ in schema"):
        sink.publish(record(0), [*segments(directory, 0), other])
    assert os.listdir(target) == []


def test_a_sink_that_is_not_open_publishes_nothing(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    with pytest.raises(SinkError, match="not open"):
        sink.publish(record(0), segments(directory, 0))
    sink.open(FLOW, 0, 1)
    sink.close()
    with pytest.raises(SinkError, match="not open"):
        sink.publish(record(0), segments(directory, 0))
    assert os.listdir(target) == []


def test_the_file_system_root_is_no_target() -> None:
    with pytest.raises(SinkError, match="cannot be a target"):
        ParquetSink("/")
