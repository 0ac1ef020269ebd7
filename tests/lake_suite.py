"""What every table of a lake must do besides the contract of sinks: other writers, and races right at the commit.

`sink.after_stage` is reached when a writer has all rows and nothing is committed, `sink.before_stage` between the look
and the commit of an epoch without rows. What others do there happens in the window that a fence must cover.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core import crashpoints, limits
from holdfast.core.errors import FencedError, HoldfastError, LedgerError, PlanError, SinkError
from holdfast.flow.lake import DeltaSink, IcebergSink
from holdfast.sinks.contract import Sink
from holdfast.sinks.lake import Conflict, LakeSink, lake_rows, lake_sink
from holdfast.storage import atomic
from holdfast.testing import SinkSuite, Target, epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, publish_after, record, segments
from holdfast.verify import power

FOREIGN = pa.table([[1000], ["foreign"]], schema=SCHEMA)


class LakeSuite(SinkSuite):
    """Inherit from it, and say how others use such a table."""

    tears = 6

    def describe(self, place: Path, partition_by: str | None = None) -> DeltaSink | IcebergSink:
        """A table, not made yet."""
        raise NotImplementedError

    def create(self, description: DeltaSink | IcebergSink, schema: pa.Schema) -> None:
        """Make the table, as a user would."""
        raise NotImplementedError

    def append(self, description: DeltaSink | IcebergSink, rows: pa.Table) -> None:
        """Append, as others do."""
        raise NotImplementedError

    def disturb(self, description: DeltaSink | IcebergSink) -> None:
        """Commit what no commit may be laid on top of unseen."""
        raise NotImplementedError

    def rewrite(self, description: DeltaSink | IcebergSink) -> None:
        """Move all rows into other files."""
        raise NotImplementedError

    def maintain(self, description: DeltaSink | IcebergSink) -> None:
        """Remove all that the newest version can do without."""
        raise NotImplementedError

    def drop(self, description: DeltaSink | IcebergSink) -> None:
        """Remove the table."""
        raise NotImplementedError

    def target(self, schema: pa.Schema, place: Path) -> Target:
        description = self.describe(place)
        return Target(lambda: lake_sink(description, schema), lambda: lake_rows(description))

    @pytest.fixture
    def description(self, tmp_path: Path) -> DeltaSink | IcebergSink:
        return self.describe(tmp_path / "target")

    @pytest.fixture
    def at(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object], int], None]:
        """Has something happen the first times that a crash point is reached.

        In a thread of its own, as another process would: the points may lie inside a call of the format's package.
        """

        def at(point: str, act: Callable[[], object], times: int = 1) -> None:
            left = [act] * times

            def reach(reached: str) -> None:
                if reached == point and left:
                    thread = threading.Thread(target=left.pop())
                    thread.start()
                    thread.join()

            monkeypatch.setattr(crashpoints, "reach", reach)

        return at

    # Races of our own

    @pytest.mark.parametrize("generation", [1, 2])
    @pytest.mark.parametrize(
        ("epoch", "point"), [(0, "sink.after_stage"), (0, "sink.before_stage"), (1, "sink.before_stage")]
    )
    def test_a_zombie_that_was_replaced_between_its_look_and_its_commit_is_refused(
        self, stream: Target, directory: Path, at, generation: int, epoch: int, point: str
    ) -> None:
        zombie, successor = stream.sink(), stream.sink()
        zombie.open(FLOW, 0, 1)
        publish_after(zombie, None, directory, 1, until=epoch)
        at(point, lambda: successor.open(FLOW, 0, generation))
        with pytest.raises(FencedError):
            zombie.publish(record(epoch), segments(directory, epoch))
        assert stream.values() == expected(until=epoch)
        last = record(epoch - 1) if epoch else None
        publish_after(successor, last, directory, generation)
        assert stream.values() == expected()

    @pytest.mark.parametrize("until", [1, 3])
    def test_a_zombie_whose_epoch_was_published_by_its_successor_meanwhile_is_refused(
        self, stream: Target, directory: Path, at, until: int
    ) -> None:
        zombie, successor = stream.sink(), stream.sink()
        zombie.open(FLOW, 0, 1)
        at("sink.after_stage", lambda: epochs.feed(successor, directory, 2, until))
        with pytest.raises(FencedError):
            zombie.publish(record(0), segments(directory, 0))
        assert stream.values() == expected(until=until)

    def test_of_two_that_make_the_table_at_once_the_later_one_stays(
        self, stream: Target, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = stream.sink(), stream.sink()
        assert isinstance(second, LakeSink)
        create = second._table.create

        def late(held) -> None:
            first.open(FLOW, 0, 1)
            create(held)

        monkeypatch.setattr(second._table, "create", late)
        assert second.open(FLOW, 0, 1) is None
        with pytest.raises(FencedError):
            first.publish(record(0), segments(directory, 0))
        publish_after(second, None, directory, 1)
        assert stream.values() == expected()

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_a_commit_whose_reply_was_lost_is_there_once(
        self, stream: Target, directory: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        publish_after(sink, None, directory, 1, until=epoch)
        assert isinstance(sink, LakeSink)
        commit = sink._table.commit

        def lost(*given) -> None:
            commit(*given)
            monkeypatch.undo()
            raise Conflict

        monkeypatch.setattr(sink._table, "commit", lost)
        sink.publish(record(epoch), segments(directory, epoch))
        publish_after(sink, record(epoch), directory, 1)
        assert stream.values() == expected()

    def test_an_error_on_the_way_comes_out_as_itself_and_shows_nothing(
        self, stream: Target, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)

        def fail(point: str) -> None:
            if point == "sink.after_stage":
                raise LedgerError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(crashpoints, "reach", fail)
            with pytest.raises(LedgerError, match="no answer"):
                sink.publish(record(0), segments(directory, 0))
        assert stream.values() == []
        publish_after(sink, None, directory, 1)
        assert stream.values() == expected()

    def test_what_was_published_survives_a_power_cut(
        self, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"
        home.mkdir()
        target = self.target(SCHEMA, home / "target")
        for until in (0, 1, 3, 5):
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", os.fsync)  # so that it is undone what is done to it now
                power.note_what_is_fsynced(tmp_path / "fsynced")
                atomic.fsync_dir(home)  # the test's own directories
                epochs.feed(target.sink(), directory, generation=until, until=until)
            power.cut(home, tmp_path / "fsynced")
            assert target.values() == expected(until=until)

    # Others who write the table

    def test_what_others_append_in_between_disturbs_nobody(
        self, stream: Target, description, directory: Path, at
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        at("sink.after_stage", lambda: self.append(description, FOREIGN))
        publish_after(sink, None, directory, 1, until=2)
        at("sink.before_stage", lambda: self.append(description, FOREIGN))
        publish_after(sink, record(1), directory, 1)
        assert stream.values() == [*expected(), 1000, 1000]
        assert stream.sink().open(FLOW, 0, 2) == record(4)

    def test_a_rewrite_of_all_files_in_between_disturbs_nobody(
        self, stream: Target, description, directory: Path, at
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        publish_after(sink, None, directory, 1, until=3)
        at("sink.before_stage", lambda: self.rewrite(description))
        publish_after(sink, record(2), directory, 1, until=4)
        at("sink.after_stage", lambda: self.rewrite(description))
        publish_after(sink, record(3), directory, 1)
        assert stream.values() == expected()

    def test_a_commit_that_meets_others_again_and_again_says_that_it_heals(
        self, stream: Target, description, directory: Path, at, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "LAKE_TRIES_MAX", 3)
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        assert isinstance(sink, LakeSink)
        commit = sink._table.commit

        def contended(*given):
            self.disturb(description)
            return commit(*given)

        with monkeypatch.context() as patched:
            patched.setattr(sink._table, "commit", contended)
            with pytest.raises(SinkError, match="others committed") as raised:
                sink.publish(record(0), segments(directory, 0))
        assert raised.value.heals
        assert stream.values() == []
        self.disturb(description)
        publish_after(sink, None, directory, 1)
        assert stream.values() == expected()

    def test_what_a_table_says_of_its_sink_survives_its_maintenance(
        self, stream: Target, description, directory: Path
    ) -> None:
        epochs.feed(stream.sink(), directory, 1, until=3)
        self.append(description, FOREIGN)
        self.rewrite(description)
        self.maintain(description)
        with pytest.raises(SinkError, match="belongs to the flow"):
            stream.sink().open("clicks", 0, 2)
        sink = stream.sink()
        assert sink.open(FLOW, 0, 2, start=3) == record(2)
        publish_after(sink, record(2), directory, 2)
        assert stream.values() == [*expected(), 1000]

    # The table

    def test_a_table_that_is_there_is_taken_with_its_rows(
        self, stream: Target, description, directory: Path
    ) -> None:
        self.create(description, SCHEMA)
        self.append(description, FOREIGN)
        assert epochs.feed(stream.sink(), directory, 1) is None
        assert stream.values() == [*expected(), 1000]

    def test_a_table_with_other_columns_is_refused_and_left_alone(self, stream: Target, description) -> None:
        self.create(description, pa.schema([("value", pa.string()), ("name", pa.string())]))
        with pytest.raises(SinkError, match="columns"):
            stream.sink().open(FLOW, 0, 1)
        with pytest.raises(SinkError, match="columns"):
            stream.sink().open("another", 0, 1)

    def test_a_table_that_is_dropped_under_the_sink_is_missed(
        self, stream: Target, description, directory: Path
    ) -> None:
        sink = stream.sink()
        sink.open(FLOW, 0, 1)
        self.drop(description)
        with pytest.raises(SinkError, match="is gone"):
            sink.publish(record(0), segments(directory, 0))
        self.create(description, SCHEMA)
        with pytest.raises(SinkError, match="is gone"):
            sink.publish(record(0), segments(directory, 0))

    def test_rows_are_partitioned_and_come_back_whole(self, tmp_path: Path) -> None:
        rows = pa.table({"n": [0, 1, 2, 3], "day": ["mon", "tue", None, "mon"]})
        description = self.describe(tmp_path / "target", partition_by="day")
        sink = lake_sink(description, rows.schema)
        sink.open(FLOW, 0, 1)
        for epoch in range(2):
            file = epochs.write(tmp_path / f"{epoch}.parquet", rows.slice(2 * epoch, 2))
            sink.publish(record(epoch), [file])
        found = lake_rows(description).select(["n", "day"]).sort_by("n")
        assert found.to_pydict() == rows.to_pydict()
        self._refuses(self.describe(tmp_path / "target"), rows.schema, SinkError, "partitioned by")
        for wrong in ("night", "n_and_more"):
            with pytest.raises(PlanError, match=wrong):
                lake_sink(self.describe(tmp_path / "new", partition_by=wrong), rows.schema)

    def test_types_that_no_lake_holds_are_refused(self, tmp_path: Path) -> None:
        for kind in (pa.uint64(), pa.duration("us"), pa.null(), pa.list_(pa.timestamp("ns")), pa.struct([])):
            with pytest.raises(PlanError, match="odd"):
                lake_sink(self.describe(tmp_path / "target"), pa.schema([("odd", kind)]))

    def _refuses(self, description, schema: pa.Schema, error: type[HoldfastError], why: str) -> None:
        sink: Sink = lake_sink(description, schema)
        with pytest.raises(error, match=why):
            sink.open(FLOW, 0, 9)
