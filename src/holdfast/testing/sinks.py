"""What every sink must do: each epoch visible once, whatever is replayed, refused, fenced or torn in between.

The suite works on the target alone. That a flow with the sink survives kill -9 at every step is what
`holdfast verify` shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.core.errors import FencedError, PlanError, SinkError, StorageError
from holdfast.sinks.contract import Sink
from holdfast.testing import epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, feed, publish_after, record, segments


@dataclass(frozen=True)
class Target:
    """An empty place for rows of one schema: how a process gets a sink that writes there, and what a reader sees."""

    sink: Callable[[], Sink]
    rows: Callable[[], pa.Table]  # all rows, in any order; no rows where nothing was published

    def values(self) -> list[int]:
        """The column `value` of the stream of epochs, in order."""
        table = self.rows()
        return sorted(table["value"].cast(pa.int64()).to_pylist()) if "value" in table.column_names else []


Tracer = Callable[..., Any]


class Torn(BaseException):
    """Stands for the death of the process inside the sink's code."""


class SinkSuite:
    """Inherit from it, and say what `target` is; the rest says what the target cannot do."""

    odd: tuple[str, ...] = tuple(epochs.ODD)  # odd types that it takes, by name in `epochs.ODD`
    nested: tuple[str, ...] = tuple(epochs.NESTED)
    hostile: tuple[str | None, ...] = epochs.HOSTILE
    names: tuple[str, ...] = epochs.HOSTILE_NAMES
    reads_rows: bool = True  # False if it publishes files without looking into them
    tears: int = 24  # at how many lines of its code, spread over all of them, it is torn

    def target(self, schema: pa.Schema, place: Path) -> Target:
        """A new, empty target for rows of a schema; `place` is a directory of the test's own."""
        raise NotImplementedError

    def as_read(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """What a reader sees of a column of odd types, where the target stores it as something else."""
        return column

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Where the segments of the stream are."""
        return epochs.write_segments(tmp_path / "segments")

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Target:
        """A target for the stream of epochs."""
        return self.target(SCHEMA, tmp_path / "target")

    # Once

    def test_all_rows_are_there_once(self, stream: Target, directory: Path) -> None:
        assert feed(stream.sink(), directory, generation=1) is None
        assert stream.values() == expected()
        names = {f"n{value}" for value in expected()}
        assert set(stream.rows()["name"].to_pylist()) == names

    def test_an_epoch_without_rows_moves_only_the_record(self, stream: Target, directory: Path) -> None:
        feed(stream.sink(), directory, generation=1, until=2)
        assert stream.values() == expected(until=1)
        assert stream.sink().open(FLOW, 0, 2) == record(1)

    def test_a_first_epoch_without_rows_is_recorded(self, stream: Target) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        sink.publish(record(0), [])
        assert stream.values() == []
        assert stream.sink().open(FLOW, 0, 2) == record(0)

    def test_a_replayed_epoch_is_there_already(self, stream: Target, directory: Path) -> None:
        sink = stream.sink()
        feed(sink, directory, generation=1, until=3)
        sink.publish(record(2), segments(directory, 2))
        successor = stream.sink()
        assert successor.open(FLOW, 0, 2) == record(2)
        successor.publish(record(2, generation=2), segments(directory, 2))
        assert stream.values() == expected(until=3)
        publish_after(successor, record(2), directory, generation=2)
        assert stream.values() == expected()

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
        self, stream: Target, directory: Path, change: dict[str, int | str], why: str
    ) -> None:
        feed(stream.sink(), directory, generation=1, until=3)
        sink = stream.sink()
        sink.open(FLOW, 1, 1)
        with pytest.raises(SinkError, match=why):
            sink.publish(record(**change), segments(directory, 4))  # type: ignore[arg-type]
        assert stream.values() == expected(until=3)
        assert stream.sink().open(FLOW, 1, 2) == record(2)

    def test_a_sink_added_later_starts_where_it_was_told_to_at_first(
        self, stream: Target, directory: Path
    ) -> None:
        sink = stream.sink()
        assert sink.open(FLOW, 0, 1, start=4) is None
        assert sink.open(FLOW, 0, 2, start=3) is None
        with pytest.raises(SinkError, match="waits for epoch 4"):
            sink.publish(record(3, generation=2), [])
        sink.publish(record(4, generation=2), segments(directory, 4))
        assert stream.sink().open(FLOW, 0, 3) == record(4, generation=2)

    def test_a_new_branch_goes_on_where_the_old_one_ended(self, stream: Target, directory: Path) -> None:
        feed(stream.sink(), directory, generation=1, until=3)
        sink = stream.sink()
        assert sink.open(FLOW, 1, 2) == record(2)
        sink.publish(record(3, generation=2, branch=1), segments(directory, 3))
        sink.publish(record(4, generation=2, branch=1), segments(directory, 4))
        assert stream.values() == expected()

    # Who may write

    def test_a_target_of_another_flow_is_refused_and_its_owner_goes_on(
        self, stream: Target, directory: Path
    ) -> None:
        owner = stream.sink()
        owner.open(FLOW, 0, 1)
        with pytest.raises(SinkError, match="belongs to the flow 'orders'"):
            stream.sink().open("clicks", 0, 7)
        publish_after(owner, None, directory, generation=1)
        assert stream.values() == expected()

    def test_an_older_generation_cannot_open_the_target(self, stream: Target, directory: Path) -> None:
        feed(stream.sink(), directory, generation=3)
        with pytest.raises(FencedError, match="by generation 3"):
            stream.sink().open(FLOW, 0, 2)

    @pytest.mark.parametrize("generation", [1, 2])
    def test_an_opening_fences_the_one_before_it_though_it_published_nothing(
        self, stream: Target, directory: Path, generation: int
    ) -> None:
        older, newer = stream.sink(), stream.sink()
        older.open(FLOW, 0, 1)
        newer.open(FLOW, 0, generation)
        with pytest.raises(FencedError):
            older.publish(record(0), segments(directory, 0))
        assert stream.values() == []
        publish_after(newer, None, directory, generation)
        assert stream.values() == expected()

    def test_whoever_drives_it_goes_on_under_a_higher_generation(
        self, stream: Target, directory: Path
    ) -> None:
        """A group's generation is raised under the process that stays, with epochs in its hand."""
        sink = stream.sink()
        feed(sink, directory, generation=1, until=2)
        assert sink.open(FLOW, 0, 3) == record(1)
        with pytest.raises(FencedError, match="by generation 3"):
            stream.sink().open(FLOW, 0, 2)
        sink.publish(record(1, generation=3), segments(directory, 1))
        publish_after(sink, record(1), directory, generation=3)
        assert stream.values() == expected()

    def test_a_sink_that_is_not_open_publishes_nothing(self, stream: Target, directory: Path) -> None:
        sink = stream.sink()
        with pytest.raises(SinkError, match="not open"):
            sink.publish(record(0), segments(directory, 0))
        sink.open(FLOW, 0, 1)
        sink.close()
        with pytest.raises(SinkError, match="not open"):
            sink.publish(record(0), segments(directory, 0))
        assert stream.values() == []

    # What fails in the middle

    def test_a_lost_or_torn_segment_is_our_own_fault_and_shows_nothing(
        self, stream: Target, directory: Path
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        whole = segments(directory, 0)[0].read_bytes()
        torn, spoiled = directory / "torn.parquet", directory / "spoiled.parquet"
        torn.write_bytes(whole[:-9])
        spoiled.write_bytes(whole[:4] + b"\xff" * 64 + whole[68:])
        for path in (torn, directory / "lost.parquet", *([spoiled] if self.reads_rows else [])):
            with pytest.raises(StorageError, match=path.name):
                sink.publish(record(0), [segments(directory, 0)[1], path])
            assert stream.values() == []
        publish_after(sink, None, directory, generation=1)
        assert stream.values() == expected()

    def test_torn_at_any_line_it_shows_whole_epochs_and_a_successor_goes_on(
        self, tmp_path: Path, directory: Path
    ) -> None:
        whole = self.target(SCHEMA, tmp_path / "whole")
        with _lines(whole.sink(), None) as passed:
            feed(whole.sink(), directory, generation=1, until=3)
        assert passed.lines > 0, "none of the lines of the sink's own module was run"
        step = max(1, passed.lines // self.tears)
        for number, line in enumerate(range(1, passed.lines + 1, step)):
            target = self.target(SCHEMA, tmp_path / f"torn-{number}")
            with _lines(target.sink(), line), pytest.raises(Torn):
                feed(target.sink(), directory, generation=1, until=3)
            assert target.values() in [expected(until=until) for until in range(4)], f"torn at line {line}"
            feed(target.sink(), directory, generation=2)
            assert target.values() == expected(), f"torn at line {line}"

    # What it holds

    def test_odd_types_come_back_as_they_were(self, tmp_path: Path) -> None:
        self._round_trip(tmp_path, epochs.odd_rows([*self.odd, *self.nested]))

    def test_types_that_it_cannot_hold_are_refused_before_anything_runs(self, tmp_path: Path) -> None:
        for name in {*epochs.ODD, *epochs.NESTED} - {*self.odd, *self.nested}:
            schema = epochs.odd_rows([name]).schema
            with pytest.raises(PlanError, match=name):
                self.target(schema, tmp_path / name).sink().open(FLOW, 0, 1)

    def test_hostile_strings_are_strings(self, tmp_path: Path) -> None:
        texts = pa.array(self.hostile)
        self._round_trip(tmp_path, pa.table({"n": pa.array(range(len(texts))), "text": texts}))

    def test_hostile_names_are_names(self, tmp_path: Path) -> None:
        columns = {name: pa.array([f"{name} {i}" for i in range(3)]) for name in self.names}
        self._round_trip(tmp_path, pa.table({"n": pa.array([0, 1, 2]), **columns}))

    def test_a_huge_epoch_is_whole(self, tmp_path: Path) -> None:
        rows = pa.table({"n": pa.array(range(epochs.HUGE_ROWS))})
        rows = rows.append_column("text", pc.binary_join_element_wise("row", rows["n"].cast("string"), "-"))
        target = self.target(rows.schema, tmp_path / "target")
        cut = epochs.HUGE_ROWS // 3
        parts = [rows.slice(0, cut), rows.slice(cut, cut), rows.slice(2 * cut)]
        files = [epochs.write(tmp_path / f"{i}.parquet", part) for i, part in enumerate(parts)]
        sink = target.sink()
        sink.open(FLOW, 0, 1)
        sink.publish(record(0), files)
        found = target.rows().select(["n", "text"]).sort_by("n")
        assert np.array_equal(found["n"].cast(pa.int64()).to_numpy(), np.arange(epochs.HUGE_ROWS))
        assert found["text"].cast("string").combine_chunks().equals(rows["text"].combine_chunks())

    def _round_trip(self, place: Path, rows: pa.Table) -> None:
        """Published in two epochs, so that whatever is made for the first is met again by the second."""
        target = self.target(rows.schema, place / "target")
        sink = target.sink()
        sink.open(FLOW, 0, 1)
        for epoch, part in enumerate((rows.slice(0, 1), rows.slice(1))):
            sink.publish(record(epoch), [epochs.write(place / f"{epoch}.parquet", part)])
        found = target.rows().sort_by("n")
        for name in rows.column_names:
            seen = found[name].combine_chunks().to_pylist()
            wanted = self.as_read(name, rows[name]).combine_chunks().to_pylist()
            assert list(map(repr, seen)) == list(map(repr, wanted)), name


@dataclass
class _Passed:
    lines: int = 0


@contextmanager
def _lines(sink: Sink, until: int | None) -> Iterator[_Passed]:
    """Count the lines that run in the file of a sink's class; with `until`, die at that one, and only once."""
    home, passed, numbers = type(sink).publish.__code__.co_filename, _Passed(), count(1)

    def local(frame: FrameType, event: str, _: object) -> Tracer:
        if event == "line":
            passed.lines = next(numbers)
            if passed.lines == until:
                raise Torn
        return local

    def trace(frame: FrameType, event: str, _: object) -> Tracer | None:
        return local if frame.f_code.co_filename == home else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)
