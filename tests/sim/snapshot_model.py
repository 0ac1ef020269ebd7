"""A model of the ledger and of what the runtime does with it about snapshots, quick enough for thousands of schedules.

Every decision is protocols/snapshots.py's own. The transactions, and the order of reads, writes and crash points, are
those of ledger/snapshots.py, ledger/returning.py, ledger/branches.py, runtime/region.py, runtime/coordinator.py,
runtime/sink_loop.py and storage/shipper.py; that they are is tested by running both through the same schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.errors import FencedError, LedgerError, SinkError
from holdfast.ledger.epochs import StageRow
from holdfast.protocols import retention
from holdfast.protocols import snapshots as protocol
from holdfast.protocols.snapshots import ABORTED, ASKED, COMMITTED, DONE, PREPARING, Move, Part, Standing
from holdfast.sinks.contract import SinkRecord
from sim.snapshot_schedules import channel
from sim.snapshot_store import FLOW, Offer, Reads, Standings, Surroundings, Worker
from sim.snapshot_target import Target

COMPLETE = (COMMITTED, DONE)


@dataclass
class Snapshot:
    """A row of snapshots, with its parts."""

    number: int
    status: str
    mode: str
    asked: bool
    parts: dict[str, Part] = field(default_factory=dict)


@dataclass
class Stage:
    """A row of stages, and what belongs to it."""

    row: StageRow
    positions: dict[str, int]
    needed: dict[str, int]
    plan: Reads | None = None
    files: list[str] = field(default_factory=list)  # by epoch
    safe: int = -1
    orphaned: bool = False
    attempts: set[str] = field(default_factory=set)  # that are open
    branches: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # parent, and the last epoch that both share


@dataclass(frozen=True)
class Group:
    """A row of groups."""

    generation: int
    primary: str | None


class ModelStore:
    """As the ledger, in memory."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._graph = around.schedule.graph
        self._region = self._graph.region
        self._stages = {
            name: Stage(StageRow(name, 0, 0, -1, 0), dict.fromkeys(inputs, 0), dict.fromkeys(inputs, 0))
            for name, inputs in self._graph.inputs.items()
        }
        # As a ledger counts that has a supervisor and whose groups are laid out.
        self._groups = {name: Group(at, None) for at, name in enumerate(around.schedule.groups, 2)}
        self._generation = 1 + len(self._groups)
        self._attempts = 0
        self._snapshots: list[Snapshot] = []
        self._items = dict.fromkeys(self._graph.sources, 0)
        self._sinks = dict.fromkeys(self._graph.sinks, 0)

    # Who may write.

    def assign(self, group: str, worker: str) -> int:
        for stage in self._around.schedule.groups[group]:
            if self._groups[group].primary is not None:
                self._stages[stage].orphaned = True
        self._raise_generation(group)
        self._groups[group] = replace(self._groups[group], primary=worker)
        return self._groups[group].generation

    def leave(self, worker: Worker) -> None:
        self._fence(worker.generation)
        self._raise_generation(worker.group)
        self._groups[worker.group] = replace(self._groups[worker.group], primary=None)

    def generation_of(self, worker: Worker) -> int | None:
        row = self._groups[worker.group]
        return row.generation if row.primary == worker.name else None

    def _raise_generation(self, group: str) -> None:
        self._generation += 1
        self._groups[group] = replace(self._groups[group], generation=self._generation)
        for stage in self._around.schedule.groups[group]:
            known = self._stages[stage]
            known.row = replace(known.row, generation=self._generation)
            known.attempts.clear()

    def _fence(self, generation: int) -> None:
        if all(row.generation != generation for row in self._groups.values()):
            raise FencedError(f"generation {generation} was deposed")

    def _fence_stage(self, row: StageRow) -> None:
        if self._stages[row.stage].row != row:
            raise FencedError(f"refused: expected {row}, found {self._stages[row.stage].row}")

    def _own(self, worker: Worker, stage: str) -> Stage:
        found = self._stages[stage]
        if found.row.generation != worker.generation:
            raise FencedError(f"generation {worker.generation} was deposed")
        return found

    # Epochs.

    def add_items(self, source: str, known: int, number: int) -> None:
        self._items[source] = known + number

    def offer(self, worker: Worker, stage: str) -> Offer | None:
        found = self._own(worker, stage)
        bounds = self._bounds(stage)
        if found.plan is None and bounds is None:
            return None
        named, sources = {}, {}
        for name, producer in self._graph.inputs[stage].items():
            start = found.plan[name][0] if found.plan else found.positions[name]
            stop = found.plan[name][1] if found.plan else (bounds or {}).get(name)
            if producer is None:
                sources[name] = self._items[name] - start
            else:
                named[name] = self._stages[producer].files[start : None if stop is None else max(start, stop)]
        return Offer(found.row, found.plan, dict(found.positions), named, sources)

    def _lacking(self, stage: str) -> list[Snapshot]:
        return [one for one in self._snapshots if one.status == PREPARING and stage not in one.parts]

    def _bounds(self, stage: str) -> dict[str, int] | None:
        """As `ceilings` of runtime/region.py."""
        if stage not in self._region:
            inputs = self._graph.inputs[stage].items()
            return {name: self._released(p) + 1 for name, p in inputs if p is not None and p in self._region}
        if self._last_complete() is None:
            return None
        under_way = [(one.mode, one.parts) for one in self._snapshots if one.status == PREPARING]
        return protocol.bounds(self._region, stage, under_way)

    def pass_over(self, row: StageRow, ranges: Reads) -> None:
        self._fence_stage(row)
        found = self._stages[row.stage]
        self._move_positions(found, ranges)
        found.row = replace(row, plan_version=row.plan_version + 1)

    def _move_positions(self, found: Stage, reads: Reads) -> None:
        for name, (start, _) in reads.items():
            if found.positions[name] != start:
                raise LedgerError(f"input {name} does not start at {start}, where the last epoch ended")
        found.positions.update({name: stop for name, (_, stop) in reads.items()})

    def record_plan(self, row: StageRow, reads: Reads) -> tuple[StageRow, str]:
        self._fence_stage(row)
        found = self._stages[row.stage]
        found.row = replace(row, plan_version=row.plan_version + 1)
        found.plan = reads
        return found.row, self._new_attempt(found)

    def open_attempt(self, row: StageRow) -> str:
        now = self._stages[row.stage].row
        if (now.branch, now.generation) != (row.branch, row.generation):
            raise FencedError("refused")
        return self._new_attempt(self._stages[row.stage])

    def _new_attempt(self, found: Stage) -> str:
        self._attempts += 1
        attempt = f"attempt-{self._attempts}"
        found.attempts.add(attempt)
        return attempt

    def commit(self, row: StageRow, attempt: str, reads: Reads, path: str, rows: int) -> None:
        self._fence_stage(row)
        found = self._stages[row.stage]
        if attempt not in found.attempts:
            raise FencedError(f"{attempt} was closed")
        self._move_positions(found, reads)
        found.attempts.discard(attempt)
        found.row = replace(row, head=row.head + 1)
        found.plan = None
        found.files.append(path)

    # Snapshots.

    def snapshot_step(self, worker: Worker) -> None:
        own = [stage for stage in worker.stages if stage in self._region]
        for stage in own:
            self._take_part(worker, stage)
        if next(iter(self._region)) in own:
            self._coordinate(worker)

    def _take_part(self, worker: Worker, stage: str) -> None:
        row = self._own(worker, stage).row
        lacking = self._lacking(stage)
        if not lacking:
            return
        snapshot = lacking[0]
        part = protocol.part_of(snapshot.mode, self._region, stage, self._standing(stage), snapshot.parts)
        if part is None:
            return
        self._around.reach("snapshot.before_part")
        try:
            self._add_part(row, snapshot, part)
        except FencedError:
            self._fence(worker.generation)
            return
        self._around.reach("snapshot.after_part")

    def _standing(self, stage: str) -> Standing:
        found = self._stages[stage]
        return Standing(found.row.head, dict(found.positions), found.plan is not None)

    def _add_part(self, row: StageRow, snapshot: Snapshot, part: Part) -> None:
        self._fence_stage(row)
        if snapshot.status == PREPARING:
            snapshot.parts.setdefault(row.stage, part)

    def _coordinate(self, worker: Worker) -> None:
        under_way = [replace(s, parts=dict(s.parts)) for s in self._snapshots if s.status == PREPARING]
        asked = any(s.status == ASKED for s in self._snapshots)
        published = [s for s in self._snapshots if s.status == COMMITTED and self._is_published(s)]
        mode = self._mode_of_next(worker, len(under_way), asked)
        for snapshot in under_way:
            self._move(worker, snapshot)
        if published:
            self._around.reach("snapshot.before_done")
            self._fence(worker.generation)
            for snapshot in published:
                snapshot.status = DONE
        if mode is not None:
            generation = worker.generation
            self._around.reach("snapshot.before_begin")
            number = self._begin(generation, mode)
            worker.begun[number] = worker.begun_us = self._around.now_us()
            self._around.reach("snapshot.after_begin")

    def _begin(self, generation: int, mode: str) -> int:
        self._fence(generation)
        asked = next((one for one in self._snapshots if one.status == ASKED), None)
        if asked is None:
            asked = Snapshot(len(self._snapshots), ASKED, mode, False)
            self._snapshots.append(asked)
        asked.status, asked.mode = PREPARING, mode
        return asked.number

    def _mode_of_next(self, worker: Worker, under_way: int, asked: bool) -> str | None:
        if self._last_complete() is None:
            return None if under_way else "freeze"
        if not asked and not self._has_changed():
            return None
        now_us, pace = self._around.now_us(), self._around.pace()
        due = protocol.is_due(pace, now_us, worker.begun_us, worker.ended_us, under_way, asked)
        return self._around.mode() if due else None

    def _move(self, worker: Worker, snapshot: Snapshot) -> None:
        now_us = self._around.now_us()
        begun_us = worker.begun.setdefault(snapshot.number, now_us)
        safe = {stage: self._stages[stage].safe for stage in self._region}
        move = protocol.next_move(self._region, snapshot.parts, safe, begun_us, now_us, self._around.pace())
        if move is Move.WAIT:
            return
        if move is Move.COMMIT:
            self._around.reach("snapshot.before_commit")
            self._commit_snapshot(worker, snapshot)
            self._around.reach("snapshot.after_commit")
        else:
            self._fence(worker.generation)
            self._snapshots[snapshot.number].status = ABORTED
        worker.begun.pop(snapshot.number)
        worker.ended_us = self._around.now_us()

    def _commit_snapshot(self, worker: Worker, snapshot: Snapshot) -> None:
        self._fence(worker.generation)
        if self._snapshots[snapshot.number].status != PREPARING:
            return
        self._snapshots[snapshot.number].status = COMMITTED
        self._around.captured(snapshot.number, snapshot.mode, snapshot.parts)

    def ask(self) -> None:
        self._snapshots.append(Snapshot(len(self._snapshots), ASKED, "", True))

    def _last_complete(self) -> Snapshot | None:
        return next((one for one in reversed(self._snapshots) if one.status in COMPLETE), None)

    def _released(self, stage: str) -> int:
        if stage not in self._region:
            return self._stages[stage].row.head
        return max((s.parts[stage].epoch for s in self._snapshots if s.status in COMPLETE), default=-1)

    def _is_published(self, snapshot: Snapshot) -> bool:
        sinks = [(sink, stage) for sink, stage in self._graph.sinks.items() if stage in snapshot.parts]
        return all(self._sinks[sink] > snapshot.parts[stage].epoch for sink, stage in sinks)

    def _has_changed(self) -> bool:
        last = self._last_complete()
        return last is None or any(self._stages[s].row.head != last.parts[s].epoch for s in self._region)

    # Files.

    def _restorable(self, stage: str) -> list[Part]:
        complete = [one for one in self._snapshots if one.status in COMPLETE]
        numbers = protocol.kept((one.number, one.asked) for one in complete)
        return [one.parts[stage] for one in complete if one.number in numbers]

    def _goal(self, stage: str) -> int:
        if stage not in self._region:
            return self._stages[stage].row.head
        open_or_complete = (PREPARING, *COMPLETE)
        parts = [one.parts.get(stage) for one in self._snapshots if one.status in open_or_complete]
        return next((part.epoch for part in reversed(parts) if part is not None), -1)

    def _needed(self, stage: str) -> dict[str, int]:
        if stage not in self._region:
            return dict(self._stages[stage].positions)
        return {name: at for part in self._restorable(stage)[:1] for name, at in part.positions.items()}

    def ship(self, worker: Worker, stage: str) -> None:
        found = self._own(worker, stage)
        generation = found.row.generation
        goal, safe = self._goal(stage), found.safe
        due = found.files[safe + 1 : goal + 1] if goal > safe else []
        if due:
            self._around.reach("ship.before")
            self._around.carried(due)
        needed = self._needed(stage)
        if not due and needed == found.needed:
            return
        self._fence(generation)
        found.safe = goal if due else found.safe
        found.needed.update(needed)
        if due:
            self._around.reach("ship.after")

    def trimmable(self, worker: Worker, stage: str) -> int:
        found = self._own(worker, stage)
        name = channel(stage)
        needed = [self._stages[reader].needed[name] for reader in self._graph.readers(stage)]
        needed += [self._sinks[sink] for sink, of in self._graph.sinks.items() if of == stage]
        settled = found.safe
        if stage in self._region:
            settled = min((part.epoch for part in self._restorable(stage)), default=-1)
        return retention.trimmed_below(needed, settled)

    # Sinks.

    def sink_step(self, worker: Worker, sink: str, target: Target) -> None:
        found = self._stages[self._graph.sinks[sink]]
        row, position, last = found.row, self._sinks[sink], self._released(found.row.stage)
        files = found.files[position : last + 1]
        if position <= last and worker.opened.get(sink) != (worker.generation, row.branch):
            self._open(worker, sink, target)
            return
        for epoch, file in enumerate(files, position):
            self._fence(worker.generation)
            target.publish(SinkRecord(FLOW, row.branch, epoch, 0, worker.generation), [file])
            self._move_sink(worker, sink, epoch, epoch + 1)

    def _open(self, worker: Worker, sink: str, target: Target) -> None:
        found = self._stages[self._graph.sinks[sink]]
        row, position = found.row, self._sinks[sink]
        record = target.open(FLOW, row.branch, worker.generation, position)
        last = record.epoch if record else None
        if last is not None and last > row.head:
            raise SinkError(
                f"{sink} holds epoch {last}, but the ledger knows only {row.head}", operation="open sink"
            )
        if (last is not None and last < position - 1) or (last is None and position > 0):
            raise SinkError(
                f"{sink} holds epochs up to {last}, but {position - 1} was published", operation="open sink"
            )
        if record and record.branch != row.branch:
            if not self._is_shared(found, record):
                raise SinkError(f"{sink} holds epoch {record.epoch}, which was undone", operation="open sink")
            if record.epoch >= position:
                self._move_sink(worker, sink, position, record.epoch + 1)
        worker.opened[sink] = worker.generation, row.branch

    def _is_shared(self, found: Stage, record: SinkRecord) -> bool:
        at = found.row.branch
        while at != record.branch:
            if at not in found.branches or record.epoch > found.branches[at][1]:
                return False
            at = found.branches[at][0]
        return True

    def _move_sink(self, worker: Worker, sink: str, start: int, stop: int) -> None:
        self._fence(worker.generation)
        if self._sinks[sink] == start:
            self._sinks[sink] = stop

    # The return.

    def recover(self, worker: Worker) -> None:
        own = [s for s in worker.stages if s in self._region and self._stages[s].orphaned]
        if not own:
            return
        self._around.reach("recover.before")
        self._around.reach("recover.before_commit")
        self._fence(worker.generation)
        snapshot = self._last_complete()
        if snapshot is not None:
            self._return_to(snapshot, worker.stages)
            self._around.returned(snapshot.number, snapshot.mode)
        for stage in own:
            self._fence(worker.generation)
            self._stages[stage].orphaned = False

    def _return_to(self, snapshot: Snapshot, own: Sequence[str]) -> None:
        ahead = self._those_ahead(snapshot)
        if ahead:
            raise LedgerError(
                f"snapshot {snapshot.number} cannot be returned to: {ahead}", operation="return"
            )
        for stage, part in snapshot.parts.items():
            self._begin_branch(self._stages[stage], part.epoch)
            self._set_cursors(stage, part.positions)
        self._raise_others([stage for stage in snapshot.parts if stage not in own])
        for stage in snapshot.parts:
            self._stages[stage].orphaned = False
        self._abort_open()

    def _those_ahead(self, snapshot: Snapshot) -> list[str]:
        parts = snapshot.parts
        ahead = [
            sink
            for sink, stage in self._graph.sinks.items()
            if stage in parts and self._sinks[sink] > parts[stage].epoch + 1
        ]
        for stage, inputs in self._graph.inputs.items():
            for name, producer in inputs.items():
                inside = producer in parts and stage not in parts
                if producer and inside and self._stages[stage].positions[name] > parts[producer].epoch + 1:
                    ahead.append(stage)
        return ahead

    def _begin_branch(self, found: Stage, epoch: int) -> None:
        row = found.row
        found.branches[row.branch + 1] = row.branch, epoch
        found.row = replace(row, branch=row.branch + 1, head=epoch, plan_version=row.plan_version + 1)
        found.plan = None
        del found.files[epoch + 1 :]
        found.attempts.clear()
        found.safe = min(found.safe, epoch)

    def _set_cursors(self, stage: str, positions: Mapping[str, int]) -> None:
        self._stages[stage].positions.update(positions)

    def _raise_others(self, stages: Sequence[str]) -> None:
        for group, named in self._around.schedule.groups.items():
            if set(stages) & set(named):
                self._raise_generation(group)

    def _abort_open(self) -> None:
        for snapshot in self._snapshots:
            if snapshot.status == PREPARING:
                snapshot.status = ABORTED

    # What is so.

    def standings(self) -> Standings:
        return Standings(
            {name: found.row.head for name, found in self._stages.items()},
            {name: dict(found.positions) for name, found in self._stages.items()},
        )

    def is_quiet(self) -> bool:
        waiting = any(one.status in (PREPARING, ASKED, COMMITTED) for one in self._snapshots)
        return not waiting and not self._has_changed()
