"""A generation that is raised under a sink with epochs in hand costs nothing: each leaves once, under a fence that rises.

A target that has lost what was published stops the flow.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import FencedError, SinkError
from holdfast.flow.endpoints import parquet
from holdfast.flow.flow_plan import SinkSpec
from holdfast.ledger import epochs, groups, holder, starts
from holdfast.ledger.epochs import Commit
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.context import Runtime
from holdfast.runtime.progress import Progress
from holdfast.runtime.sink_loop import SinkLoop
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.parquet import ParquetSink
from holdfast.testing.epochs import FLOW, SCHEMA, VALUES, expected, segments, write_segments
from registered import register_stage

STAGE, GROUP = "s", "main"


@dataclass
class Watched:
    """A directory as a target, and something that happens at a publication: before it, or after it."""

    sink: ParquetSink
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    at: int = 1
    place: object = None
    opened: list[int] = field(default_factory=list)
    published: list[tuple[int, int]] = field(default_factory=list)

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        self.opened.append(generation)
        return self.sink.open(flow, branch, generation, start)

    def publish(self, record: SinkRecord, files: Sequence[Path]) -> None:
        now = record.epoch == self.at and len(self.opened) == 1
        if now:
            self.before()
        self.sink.publish(record, files)
        self.published.append((record.epoch, record.generation))
        if now:
            self.after()

    def close(self) -> None:
        self.sink.close()


class Flow:
    """A stage with committed epochs, and the loop of its sink in a worker that leads."""

    def __init__(self, root: Path) -> None:
        self.root = write_segments(root)
        self.ledger = Ledger(root)
        self.supervisor = holder.supervise(self.ledger, FLOW)
        groups.lay_out(self.ledger, self.supervisor, {}, {GROUP: [STAGE]})
        generation = groups.assign(self.ledger, self.supervisor, GROUP, "first", ["first"], "start")
        groups.admit(self.ledger, self.supervisor, GROUP, "standby")
        register_stage(self.ledger, generation, STAGE, None, [])
        with self.ledger.write(generation) as tx:
            starts.add_cursor(tx, "sink:out", f"channel:{STAGE}.out", 0)
        for epoch in range(len(VALUES)):
            self._commit(epoch)
        self.target = Watched(ParquetSink(str(root / "out"), False, SCHEMA))
        self.rt: Any = SimpleNamespace(
            ledger=self.ledger,
            root=self.root,
            plan=SimpleNamespace(name=FLOW),
            generation=generation,
            group=GROUP,
            worker="first",
            stopping=Event(),
            progress=Progress(),
            labels=SimpleNamespace(scope_of=lambda _: None),
        )
        self.rt.is_member = lambda: Runtime.is_member(self.rt)
        spec = SinkSpec("out", STAGE, "out", parquet(str(root / "out")))
        self.loop = SinkLoop(self.rt, spec, self.target)

    def _commit(self, epoch: int) -> None:
        with self.ledger.read() as tx:
            row = epochs.stage_row(tx, STAGE)
        row, attempt = epochs.record_plan(self.ledger, row, {"ranges": {}})
        files = [
            {
                "path": path.name,
                "bytes": path.stat().st_size,
                "rows": pq.read_metadata(path).num_rows,
                "crc32": zlib.crc32(path.read_bytes()),
            }
            for path in segments(self.root, epoch)
        ]
        segment = {
            "rows": sum(file["rows"] for file in files),
            "bytes": sum(file["bytes"] for file in files),
            "files": files,
        }
        epochs.commit_epoch(self.ledger, Commit(row, epoch, attempt, {}, None, {"out": segment}, {}))

    def expel(self) -> None:
        """The standby is expelled, and the worker finds out at once."""
        groups.expel(self.ledger, self.supervisor, GROUP, "standby", "it is gone")
        self.rt.is_member()

    def roll_back(self) -> None:
        """Another region goes back to a snapshot, and the worker has not looked yet."""
        with self.ledger.unfenced_write() as tx:
            groups.raise_generations(tx, [STAGE], "a region returned")

    def replace(self) -> None:
        groups.assign(self.ledger, self.supervisor, GROUP, "standby", ["standby"], "first is silent")

    def copy_target(self, source: str, to: str) -> None:
        """What was published, and the record of it."""
        for name in ("out", ".out.holdfast"):
            shutil.rmtree(self.root / to / name, ignore_errors=True)
            shutil.copytree(self.root / source / name, self.root / to / name)

    def run(self) -> None:
        self.loop.open()
        while Runtime.surviving(self.rt, self.loop.step):
            continue

    def values(self) -> list[int]:
        table = pq.read_table(self.root / "out")
        return sorted(table["value"].to_pylist())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cause", ["expel", "roll_back"])
def test_a_sink_with_epochs_in_hand_is_opened_again_when_the_generation_is_raised_under_it(
    tmp_path: Path, cause: str, when: str
) -> None:
    flow = Flow(tmp_path / "work")
    first = flow.rt.generation
    setattr(flow.target, when, getattr(flow, cause))
    flow.run()
    assert flow.target.opened == [first, flow.rt.generation]
    assert flow.rt.generation > first
    # The epoch that was on its way is offered again, and is there already.
    under = [(0, first), (1, first), *((n, flow.rt.generation) for n in range(1, len(VALUES)))]
    assert flow.target.published == under
    assert flow.values() == expected()
    with flow.ledger.read() as tx:
        assert epochs.stage_row(tx, STAGE).generation == flow.rt.generation


def test_a_worker_that_was_replaced_publishes_nothing_more(tmp_path: Path) -> None:
    flow = Flow(tmp_path / "work")
    flow.target.after = flow.replace
    with pytest.raises(FencedError, match="deposed"):
        flow.run()
    assert [epoch for epoch, _ in flow.target.published] == [0, 1]
    assert flow.values() == expected(until=2)


def test_a_target_that_was_set_back_by_a_single_epoch_stops_the_flow(tmp_path: Path) -> None:
    flow, last = Flow(tmp_path / "work"), len(VALUES) - 1
    flow.target.at, flow.target.before = last, lambda: flow.copy_target(".", "backup")
    flow.run()
    assert flow.values() == expected()
    flow.copy_target("backup", ".")
    assert flow.values() == expected(until=last)
    with pytest.raises(SinkError, match=f"up to {last - 1}, but {last} was published: the target is behind"):
        flow.run()
