"""What every target that prepares and commits must do, and that a flow with it publishes once whatever cuts it off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core import crashpoints
from holdfast.core.errors import FencedError
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
from holdfast.sinks.two_phase import TwoPhase, TwoPhaseSink
from holdfast.testing import epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, publish_after, record, segments
from holdfast.testing.sinks import Torn

NAME = "out"
PREFIX = f"{FLOW}:{NAME}:"
POINTS = ("sink.before_stage", "sink.after_stage", "sink.after_publish", "sink.after_record")


@dataclass(frozen=True)
class Doubtful:
    """An empty target for the rows of `epochs.SCHEMA`: how a process gets hold of it, and what a reader sees."""

    target: Callable[[], TwoPhase]
    rows: Callable[[], pa.Table]

    def values(self) -> list[int]:
        """The column `value`, in order."""
        return sorted(self.rows()["value"].to_pylist())


class TwoPhaseSuite:
    """Inherit from it, and say what `doubtful` is."""

    def doubtful(self, place: Path) -> Doubtful:
        """A new, empty target; `place` is a directory of the test's own."""
        raise NotImplementedError

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Doubtful:
        """A target without rows."""
        return self.doubtful(tmp_path / "target")

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Where the segments of the stream are."""
        return epochs.write_segments(tmp_path / "segments")

    def test_what_is_prepared_is_seen_by_nobody_until_it_is_committed(self, stream: Doubtful) -> None:
        target = stream.target()
        target.prepare(f"{PREFIX}a", 0, _rows(1, 2))
        assert stream.values() == []
        assert list(stream.target().in_doubt(PREFIX)) == [f"{PREFIX}a"]
        assert stream.target().commit(f"{PREFIX}a")
        assert stream.values() == [1, 2]
        assert list(target.in_doubt(PREFIX)) == []

    def test_a_second_commit_changes_nothing_and_says_the_same(self, stream: Doubtful) -> None:
        stream.target().prepare(f"{PREFIX}a", 0, _rows(1))
        assert stream.target().commit(f"{PREFIX}a")
        assert stream.target().commit(f"{PREFIX}a")
        assert stream.values() == [1]

    def test_what_is_aborted_is_gone_and_so_is_what_never_was(self, stream: Doubtful) -> None:
        target = stream.target()
        target.prepare(f"{PREFIX}a", 0, _rows(1))
        stream.target().abort(f"{PREFIX}a")
        target.abort(f"{PREFIX}a")
        target.abort(f"{PREFIX}never")
        assert not target.commit(f"{PREFIX}a")
        assert not target.commit(f"{PREFIX}never")
        assert stream.values() == []
        assert list(target.in_doubt(PREFIX)) == []

    def test_others_in_doubt_are_not_ours(self, stream: Doubtful) -> None:
        target = stream.target()
        target.prepare(f"{PREFIX}a", 0, _rows(1))
        target.prepare("another:sink:a", 0, _rows(2))
        assert list(target.in_doubt(PREFIX)) == [f"{PREFIX}a"]
        assert target.commit(f"{PREFIX}a")
        target.abort("another:sink:a")
        assert stream.values() == [1]

    def test_an_epoch_without_rows_is_prepared_and_committed(self, stream: Doubtful) -> None:
        target = stream.target()
        target.prepare(f"{PREFIX}a", 0, _rows())
        assert target.commit(f"{PREFIX}a")
        assert stream.values() == []

    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.parametrize("epoch", [0, 2])
    def test_cut_off_anywhere_every_epoch_is_there_once(
        self,
        stream: Doubtful,
        directory: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        point: str,
        epoch: int,
    ) -> None:
        ledger = Ledger(tmp_path)
        sink, first = _opened(stream, ledger)
        publish_after(sink, None, directory, first, until=epoch)
        with monkeypatch.context() as patched:
            patched.setattr(crashpoints, "reach", _tear_at(point))
            with pytest.raises(Torn):
                sink.publish(record(epoch, first), segments(directory, epoch))
        successor, second = _opened(stream, ledger, start=epoch)
        # Decided before the cut means committed, and nothing else does.
        decided = POINTS.index(point) >= POINTS.index("sink.after_publish")
        assert stream.values() == expected(until=epoch + decided)
        last = record(epoch, second) if decided else record(epoch - 1, second) if epoch else None
        publish_after(successor, last, directory, second)
        assert stream.values() == expected()
        assert list(stream.target().in_doubt(PREFIX)) == []
        with pytest.raises(FencedError):
            sink.publish(record(epoch, first), segments(directory, epoch))
        assert stream.values() == expected()
        ledger.close()

    def test_what_the_target_lost_is_prepared_again(
        self, stream: Doubtful, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = Ledger(tmp_path)
        sink, first = _opened(stream, ledger)
        with monkeypatch.context() as patched:
            patched.setattr(crashpoints, "reach", _tear_at("sink.after_publish"))
            with pytest.raises(Torn):
                sink.publish(record(0, first), segments(directory, 0))
        for token in stream.target().in_doubt(PREFIX):
            stream.target().abort(token)  # as a target does whose patience with transactions is at an end
        successor, second = _opened(stream, ledger)
        publish_after(successor, None, directory, second)
        assert stream.values() == expected()
        ledger.close()


def _opened(stream: Doubtful, ledger: Ledger, start: int = 0) -> tuple[TwoPhaseSink, int]:
    """A process that takes over from whoever was there."""
    generation = holder.take(ledger, FLOW, by_force=True)
    sink = TwoPhaseSink(stream.target(), NAME, SCHEMA, ledger)
    sink.open(FLOW, 0, generation, start)
    return sink, generation


def _tear_at(point: str) -> Callable[[str], None]:
    def torn(reached: str) -> None:
        if reached == point:
            raise Torn

    return torn


def _rows(*values: int) -> pa.RecordBatchReader:
    return epochs.rows(values).to_reader()
