"""What every sink publishes, what it refuses, and what it finds when it is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, SinkError, StorageError
from holdfast.sinks.contract import Sink
from unit.sinks.feeding import FLOW, expected, feed, publish_after, record, segments
from unit.sinks.kinds import Kind


def test_it_keeps_the_contract(kind: Kind, target: Path) -> None:
    sink: Sink = kind.sink(target)
    assert sink.open(FLOW, 0, 1) is None
    sink.close()


def test_all_rows_are_there_once_and_nothing_is_left_over(kind: Kind, target: Path, directory: Path) -> None:
    feed(kind.sink(target), directory, generation=1)
    assert kind.visible(target) == expected()
    assert kind.leftovers(target) == []


def test_an_epoch_without_rows_moves_only_the_record(kind: Kind, target: Path, directory: Path) -> None:
    feed(kind.sink(target), directory, generation=1, until=2)
    assert kind.visible(target) == expected(until=1)
    assert kind.sink(target).open(FLOW, 0, 2) == record(1)


def test_a_replayed_epoch_is_there_already(kind: Kind, target: Path, directory: Path) -> None:
    sink = kind.sink(target)
    feed(sink, directory, generation=1, until=3)
    before = kind.snapshot(target)
    sink.publish(record(2), segments(directory, 2))
    successor = kind.sink(target)
    assert successor.open(FLOW, 0, 2) == record(2)
    successor.publish(record(2, generation=2), segments(directory, 2))
    assert kind.snapshot(target) == before
    publish_after(successor, record(2), directory, generation=2)
    assert kind.visible(target) == expected()


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
    kind: Kind, target: Path, directory: Path, change: dict, why: str
) -> None:
    feed(kind.sink(target), directory, generation=1, until=3)
    sink = kind.sink(target)
    sink.open(FLOW, 1, 1)
    before = kind.snapshot(target)
    with pytest.raises(SinkError, match=why):
        sink.publish(record(**change), segments(directory, 4))
    assert kind.snapshot(target) == before


def test_a_sink_added_later_starts_where_it_was_told_to_at_first(
    kind: Kind, target: Path, directory: Path
) -> None:
    sink = kind.sink(target)
    assert sink.open(FLOW, 0, 1, start=4) is None
    assert sink.open(FLOW, 0, 2, start=3) is None
    with pytest.raises(SinkError, match="waits for epoch 4"):
        sink.publish(record(3, generation=2), [])
    sink.publish(record(4, generation=2), segments(directory, 4))
    assert kind.sink(target).open(FLOW, 0, 3) == record(4, generation=2)


def test_a_new_branch_goes_on_where_the_old_one_ended(kind: Kind, target: Path, directory: Path) -> None:
    feed(kind.sink(target), directory, generation=1, until=3)
    sink = kind.sink(target)
    assert sink.open(FLOW, 1, 2) == record(2)
    sink.publish(record(3, generation=2, branch=1), segments(directory, 3))
    sink.publish(record(4, generation=2, branch=1), segments(directory, 4))
    assert kind.visible(target) == expected()


def test_a_target_of_another_flow_is_refused_and_its_owner_goes_on(
    kind: Kind, target: Path, directory: Path
) -> None:
    owner = kind.sink(target)
    owner.open(FLOW, 0, 1)
    with pytest.raises(SinkError, match="belongs to the flow 'orders'"):
        kind.sink(target).open("clicks", 0, 7)
    publish_after(owner, None, directory, generation=1)
    assert kind.visible(target) == expected()


def test_an_older_generation_cannot_open_the_target(kind: Kind, target: Path, directory: Path) -> None:
    feed(kind.sink(target), directory, generation=3)
    with pytest.raises(FencedError, match="by generation 3"):
        kind.sink(target).open(FLOW, 0, 2)


def test_an_opening_fences_the_one_before_it_though_it_published_nothing(
    kind: Kind, target: Path, directory: Path
) -> None:
    for generation, by in ((1, "another opening of the same generation"), (2, "generation 2")):
        older, newer = kind.sink(target), kind.sink(target)
        last = older.open(FLOW, 0, 1)
        newer.open(FLOW, 0, generation)
        with pytest.raises(FencedError, match=by):
            older.publish(record(last.epoch + 1 if last else 0), segments(directory, 0))
        assert kind.visible(target) == []


def test_a_lost_or_torn_segment_is_named_as_our_own_fault(kind: Kind, target: Path, directory: Path) -> None:
    sink = kind.sink(target)
    sink.open(FLOW, 0, 1)
    torn, spoiled = directory / "torn.parquet", directory / "spoiled.parquet"
    whole = segments(directory, 0)[0].read_bytes()
    torn.write_bytes(whole[:-9])
    spoiled.write_bytes(whole[:4] + b"\xff" * 64 + whole[68:])
    for path in (torn, directory / "lost.parquet", *([] if kind.copies else [spoiled])):
        with pytest.raises(StorageError, match=path.name):
            sink.publish(record(0), [segments(directory, 0)[1], path])
        assert kind.visible(target) == []
    publish_after(sink, None, directory, generation=1)
    assert kind.visible(target) == expected()


def test_a_sink_that_is_not_open_publishes_nothing(kind: Kind, target: Path, directory: Path) -> None:
    sink = kind.sink(target)
    with pytest.raises(SinkError, match="not open"):
        sink.publish(record(0), segments(directory, 0))
    sink.open(FLOW, 0, 1)
    sink.close()
    with pytest.raises(SinkError, match="not open"):
        sink.publish(record(0), segments(directory, 0))
    assert kind.visible(target) == []
