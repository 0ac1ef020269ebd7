"""The product's own ledger, coordinator, shipper and sink loop behind the interface of the simulation of snapshots.

Only Spark is missing: epochs are the simulation's. What a process does in a step is the code of runtime/region.py,
runtime/coordinator.py, runtime/sink_loop.py and storage/shipper.py, on a ledger in SQLite; the crash points in it are
the places at which the simulation ends it or holds it up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.flow.prefixes import Input
from holdfast.ledger import epochs, groups, holder, inputs, schema, starts
from holdfast.ledger import snapshots as ledger_snapshots
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.snapshots import ASKED, COMMITTED, PREPARING, Part
from holdfast.runtime import coordinator, recovery, region, sink_loop
from holdfast.spark.labels import Labels
from holdfast.storage import shipper, sweeper
from holdfast.storage.shipper import Route
from registered import register_stage
from sim.real_ledger import _do_not_sync
from sim.snapshot_schedules import channel
from sim.snapshot_store import FLOW, Offer, Reads, Standings, Surroundings, Worker
from sim.snapshot_target import Target

T = TypeVar("T")

# What the model does not come by, and what only tells of something that has already happened.
_SILENT = ("ship.mid",)


@dataclass(frozen=True)
class SimRoute(Route):
    """Carries the simulation's files."""

    around: Surroundings | None = None

    def carry_to(self, tier: str, root: Path, paths: Sequence[str]) -> None:
        assert self.around is not None
        self.around.carried(paths)


class Runtime(SimpleNamespace):
    """What the runtime's code asks of its context; all loops of a worker know of its generation at once."""

    process: Worker

    @property
    def generation(self) -> int:
        return self.process.generation


class RealStore:
    """A ledger in a directory, and the runtime of one worker after another."""

    def __init__(self, around: Surroundings, work_dir: Path, patch: pytest.MonkeyPatch) -> None:
        self._around, self._graph = around, around.schedule.graph
        self._root = work_dir
        self._ledger = Ledger(work_dir)
        self._ledger.engine.dispose()
        sa.event.listen(self._ledger.engine, "connect", _do_not_sync)
        self._patch(patch)
        self._supervisor = holder.supervise(self._ledger, FLOW)
        groups.lay_out(self._ledger, self._supervisor, {}, around.schedule.groups)
        self._sources: dict[str, int] = dict.fromkeys(self._graph.sources, 0)
        # Processes look far more often than anything changes: what found nothing to do finds nothing until a write.
        self._writes = 0
        self._idle: dict[object, int] = {}
        self._ledger.on_commit(self._count)
        self._register()

    def _count(self) -> None:
        self._writes += 1

    def _unless_idle(self, what: object, step: Callable[[], T | None]) -> T | None:
        """Take a step; one that came to nothing is not taken again before somebody has written."""
        before = self._writes
        if self._idle.get(what) == before:
            return None
        found = step()
        if not found:
            self._idle[what] = before
        return found

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        around = self._around
        reach = lambda point: None if point in _SILENT else around.reach(point)  # noqa: E731
        patch.setattr(crashpoints, "reach", reach)
        patch.setattr(coordinator, "_now_us", around.now_us)
        patch.setattr(sink_loop, "fault_at_first", lambda root, file: None)
        commit, begin, return_to = ledger_snapshots.commit, ledger_snapshots.begin, region.return_to

        def committed(ledger: Ledger, generation: int, snapshot: ledger_snapshots.Snapshot) -> None:
            with ledger.read() as tx:
                under_way = {one.number for one in ledger_snapshots.all_snapshots(tx, PREPARING)}
            commit(ledger, generation, snapshot)
            if snapshot.number in under_way:
                around.captured(snapshot.number, snapshot.mode, snapshot.parts)

        def begun(*args: Any, **named: Any) -> int:
            around.reach("snapshot.before_begin")
            return begin(*args, **named)

        def returning(tx: sa.Connection, snapshot: ledger_snapshots.Snapshot, *rest: Any) -> dict[str, int]:
            self._returned = snapshot
            return return_to(tx, snapshot, *rest)

        self._returned: ledger_snapshots.Snapshot | None = None
        patch.setattr(ledger_snapshots, "commit", committed)
        patch.setattr(ledger_snapshots, "begin", begun)
        patch.setattr(region, "return_to", returning)

    def _register(self) -> None:
        for group, named in self._around.schedule.groups.items():
            with self._ledger.read() as tx:
                generation = groups.all_groups(tx)[group].generation
            for stage in named:
                register_stage(self._ledger, generation, stage, None, list(self._graph.inputs[stage]))
            with self._ledger.write(generation) as tx:
                ledger_snapshots.set_region(tx, named, [name for name in named if name in self._graph.inside])
                for sink, stage in self._graph.sinks.items():
                    if stage in named:
                        starts.add_cursor(tx, f"sink:{sink}", channel(stage), 0)

    def close(self) -> None:
        self._ledger.engine.dispose()

    # Who may write.

    def assign(self, group: str, worker: str) -> int:
        return groups.assign(self._ledger, self._supervisor, group, worker, [worker], "simulated")

    def leave(self, worker: Worker) -> None:
        groups.leave(self._ledger, worker.generation, worker.name, "stopped")

    def generation_of(self, worker: Worker) -> int | None:
        with self._ledger.read() as tx:
            row = groups.all_groups(tx)[worker.group]
        return row.generation if row.primary == worker.name else None

    def _runtime(self, worker: Worker) -> Any:
        if worker.engine is None:
            rt = Runtime(
                process=worker, ledger=self._ledger, root=Path(), own=list(worker.stages), group=worker.group,
                region=self._graph.region, plan=self._plan(), stopping=threading.Event(),
                script=SimpleNamespace(cuts=(), plans=None), alarm=SimpleNamespace(ring=lambda: None),
                progress=SimpleNamespace(sink_done=lambda sink, epoch: None), own_stages=(),
                route=self._route, labels=Labels(), stages={name: self._bound(name) for name in self._graph.inputs}, loops={},
            )  # fmt: skip
            worker.engine = rt
            rt.coordinator = coordinator.Coordinator(rt, until_idle=False)
            # It is made with its worker, not at the worker's first step.
            rt.coordinator._begun_us = rt.coordinator._ended_us = worker.begun_us
        rt = cast(Any, worker.engine)
        rt.plan.snapshots = self._settings()
        return rt

    def _plan(self) -> SimpleNamespace:
        sinks = [
            SimpleNamespace(name=sink, stage=stage, port="out", input=Input("channel", stage, "out"))
            for sink, stage in self._graph.sinks.items()
        ]
        return SimpleNamespace(name=FLOW, sinks=sinks, snapshots=None)

    def _settings(self) -> SimpleNamespace:
        pace = self._around.pace()
        return SimpleNamespace(
            mode=self._around.mode(), every_us=pace.every_us, min_pause_us=pace.min_pause_us,
            max_concurrent=pace.max_concurrent, timeout_us=pace.timeout_us, tolerate=pace.tolerate,
        )  # fmt: skip

    def _bound(self, stage: str) -> SimpleNamespace:
        origins = [
            Input("channel", producer, "out") if producer else Input("source", name.partition(":")[2], "")
            for name, producer in self._graph.inputs[stage].items()
        ]
        return SimpleNamespace(spec=SimpleNamespace(inputs=origins))

    def _route(self, stage: str) -> SimRoute:
        return SimRoute(captured=stage in self._graph.inside, around=self._around)

    # Epochs.

    def add_items(self, source: str, known: int, number: int) -> None:
        self._sources[source] = known + number
        self._count()

    def offer(self, worker: Worker, stage: str) -> Offer | None:
        return self._unless_idle(("plan", worker.generation, stage), lambda: self._offer(worker, stage))

    def _offer(self, worker: Worker, stage: str) -> Offer | None:
        rt = self._runtime(worker)
        with self._ledger.read() as tx:
            row = epochs.own_row(tx, stage, worker.generation)
            plan = epochs.open_plan(tx, row)
            bounds = region.ceilings(rt, tx, row)
            if plan is None and bounds is None:
                return None
            reads = {name: (at[0], at[1]) for name, at in plan["ranges"].items()} if plan else None
            positions = dict(ledger_snapshots.standing(tx, row).positions)
            named, sources = {}, {}
            for name, producer in self._graph.inputs[stage].items():
                start = reads[name][0] if reads else positions[name]
                stop = reads[name][1] if reads else (bounds or {}).get(name)
                if producer is None:
                    sources[name] = self._sources[name] - start
                else:
                    end = epochs.stage_row(tx, producer).head + 1 if stop is None else stop
                    found = inputs.segments(tx, producer, "out", start, end)
                    named[name] = [segment.files[0]["path"] for segment in found]
            return Offer(row, reads, positions, named, sources)

    def pass_over(self, row: StageRow, ranges: Reads) -> None:
        epochs.pass_over(self._ledger, row, ranges)

    def record_plan(self, row: StageRow, reads: Reads) -> tuple[StageRow, str]:
        ranges = {name: list(at) for name, at in reads.items()}
        return epochs.record_plan(self._ledger, row, {"ranges": ranges})

    def open_attempt(self, row: StageRow) -> str:
        return epochs.open_attempt(self._ledger, row, "epoch", row.head + 1)

    def commit(self, row: StageRow, attempt: str, reads: Reads, path: str, rows: int) -> None:
        segment = {"rows": rows, "bytes": 1, "files": [{"path": path}]}
        manifest = {"rows_out": {"out": rows}}
        moves = {name: (start, stop) for name, (start, stop) in reads.items()}
        epochs.commit_epoch(
            self._ledger, Commit(row, row.head + 1, attempt, manifest, None, {"out": segment}, moves)
        )

    # Snapshots, files, sinks, the return.

    def snapshot_step(self, worker: Worker) -> None:
        rt = self._runtime(worker)
        if next(iter(rt.region)) in worker.stages:
            rt.coordinator.step()
        else:
            self._unless_idle(("snapshot", worker.generation), rt.coordinator.step)

    def ask(self) -> None:
        with self._ledger.unfenced_write() as tx:
            ledger_snapshots.ask(tx, None)

    def ship(self, worker: Worker, stage: str) -> None:
        route, generation = self._route(stage), worker.generation
        step = lambda: shipper.ship(self._ledger, Path(), stage, generation, route)  # noqa: E731
        self._unless_idle(("ship", generation, stage), step)

    def trimmable(self, worker: Worker, stage: str) -> int:
        return (
            self._unless_idle(("trim", worker.generation, stage), lambda: self._trimmable(worker, stage)) or 0
        )

    def _trimmable(self, worker: Worker, stage: str) -> int:
        readers = [f"stage:{name}" for name in self._graph.readers(stage)]
        readers += [f"sink:{sink}" for sink, of in self._graph.sinks.items() if of == stage]
        with self._ledger.read() as tx:
            row = epochs.own_row(tx, stage, worker.generation)
            settled = shipper.settled_epoch(tx, row, self._route(stage))
            return sweeper._needed_by_nobody(tx, row, readers, settled)

    def sink_step(self, worker: Worker, sink: str, target: Target) -> None:
        rt = self._runtime(worker)
        if sink not in rt.loops:
            spec = next(one for one in rt.plan.sinks if one.name == sink)
            rt.loops[sink] = sink_loop.SinkLoop(rt, spec, cast(Any, target))
        self._unless_idle(("sink", worker.generation, sink), rt.loops[sink].step)

    def recover(self, worker: Worker) -> None:
        rt = self._runtime(worker)
        recovery_return = region.return_region

        def returned(runtime: Any) -> str:
            self._returned = None
            said = recovery_return(runtime)
            if self._returned is not None:
                self._around.returned(self._returned.number, self._returned.mode)
            return said

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recovery, "return_region", returned)
            recovery.recover(rt)

    # What is so.

    def standings(self) -> Standings:
        cursors = schema.cursors
        positions: dict[str, dict[str, int]] = {stage: {} for stage in self._graph.inputs}
        with self._ledger.read() as tx:
            for consumer, name, at in tx.execute(
                sa.select(cursors.c.consumer, cursors.c.input, cursors.c.processed)
            ):
                if consumer.startswith("stage:"):
                    positions[consumer.removeprefix("stage:")][name] = int(at)
            return Standings(groups.heads(tx), positions)

    def is_quiet(self) -> bool:
        with self._ledger.read() as tx:
            waiting = ledger_snapshots.all_snapshots(tx, PREPARING, ASKED, COMMITTED)
            last = ledger_snapshots.last_complete(tx, sorted(self._graph.inside))
            parts: Mapping[str, Part] = last.parts if last else {}
            heads = groups.heads(tx)
        return not waiting and all(s in parts and heads[s] == parts[s].epoch for s in self._graph.inside)
