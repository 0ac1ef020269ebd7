"""The ledger's transactions on plain objects: the same rules as `ledger/groups.py` and `ledger/epochs.py`.

A method is one transaction: it refuses before it changes anything. What it leaves out: layers, segments, tiers and
events, of which the protocols decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.ledger.process import Process
from sim.store import Backlog, Chain, Manifest, Offer, StageFact, View


@dataclass
class _Attempt:
    stage: str
    generation: int
    status: str = "open"


class ModelLedger:
    """A ledger in memory."""

    def __init__(self, chain: Chain, wall_ms: Callable[[], int]) -> None:
        self._chain = chain
        self._wall_ms = wall_ms
        self._generation = 0
        self._supervisor = 0
        self._groups: dict[str, GroupRow] = {}
        self._workers: dict[str, WorkerRow] = {}
        self._stages: dict[str, StageRow] = {}
        self._orphaned: set[str] = set()
        self._plans: dict[tuple[str, int], tuple[int, int]] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._manifests: dict[str, list[Manifest]] = {stage: [] for stage in chain.stages}
        self._cursors: dict[tuple[str, str], int] = {}
        self._items = 0

    def view(self) -> View:
        stages = {
            name: StageFact(row.head, row.generation, name in self._orphaned)
            for name, row in self._stages.items()
        }
        return View(self._generation, dict(self._groups), stages, self._manifests, dict(self._cursors))

    # What a supervisor writes and reads.

    def supervise(self) -> int:
        self._supervisor = self._next_generation()
        return self._supervisor

    def lay_out(self, supervisor: int, groups: Mapping[str, Sequence[str]]) -> None:
        self._fence_supervisor(supervisor)
        kept = {name for name, row in self._groups.items() if tuple(groups.get(name, ())) == row.stages}
        for name in [name for name in self._groups if name not in kept]:
            self._orphan(self._groups.pop(name))
        for name in groups:
            if name not in kept:
                self._groups[name] = GroupRow(name, self._next_generation(), tuple(groups[name]), None, ())
                self._give_stages(self._groups[name])

    def assign(self, supervisor: int, group: str, primary: str, members: Collection[str], reason: str) -> int:
        self._fence_supervisor(supervisor)
        return self._assign(self._groups[group], primary, members)

    def admit(self, supervisor: int, group: str, worker: str) -> None:
        self._fence_supervisor(supervisor)
        row = self._groups[group]
        if worker not in row.members and row.primary is not None:
            self._groups[group] = replace(row, members=(*row.members, worker))

    def expel(self, supervisor: int, group: str, worker: str, reason: str) -> None:
        self._fence_supervisor(supervisor)
        row = self._groups[group]
        if worker in row.members and row.primary is not None:
            self._assign(row, row.primary, [member for member in row.members if member != worker])

    def add_worker(self, supervisor: int, worker: str, group: str) -> None:
        self._fence_supervisor(supervisor)
        self._workers[worker] = WorkerRow(worker, group, "starting", None, 0, None, self._wall_ms())

    def forget_worker(self, supervisor: int, worker: str, why: str) -> None:
        self._fence_supervisor(supervisor)
        self._workers.pop(worker, None)

    def groups_and_workers(self) -> tuple[dict[str, GroupRow], list[WorkerRow]]:
        return dict(self._groups), sorted(
            self._workers.values(), key=lambda row: (row.started_ms, row.worker)
        )

    # What a worker writes and reads about itself and its group.

    def update_worker(self, worker: str, status: str, pid: int) -> None:
        if worker in self._workers:
            process = Process("sim", pid, "")
            self._workers[worker] = replace(self._workers[worker], status=status, process=process)

    def standing(self, group: str, worker: str) -> tuple[GroupRow, bool]:
        return self._groups[group], worker in self._workers

    def register(self, generation: int, stage: str) -> None:
        self._fence(generation)
        if stage not in self._stages:
            self._stages[stage] = StageRow(stage, 0, generation, -1, 0)
        self._cursors.setdefault(self._chain.cursor_of[stage], 0)
        if stage == self._chain.last:
            self._cursors.setdefault(self._chain.sink_cursor, 0)

    def orphans(self) -> set[str]:
        return set(self._orphaned)

    def recovered(self, generation: int, stage: str) -> None:
        self._fence(generation)
        self._orphaned.discard(stage)

    def leave(self, generation: int, worker: str, status: str) -> None:
        row = self._fence(generation)
        raised = replace(row, generation=self._next_generation(), primary=None, members=())
        self._groups[row.group] = raised
        self._give_stages(raised)
        if worker in self._workers:
            self._workers[worker] = replace(self._workers[worker], status=status)

    def refuse_deposed(self, generation: int) -> None:
        self._fence(generation)

    # What a worker writes and reads about epochs.

    def add_items(self, generation: int, known: int, offered: int) -> None:
        self._fence(generation)
        self._items = max(self._items, offered)

    def offer(self, stage: str, generation: int) -> Offer | None:
        if stage not in self._stages:
            return None
        row = self._stages[stage]
        if row.generation != generation:
            raise FencedError(f"generation {generation} was deposed", stage=stage)
        start = self._cursors[self._chain.cursor_of[stage]]
        plan = self._plans.get((stage, row.head + 1))
        end = self._end(stage)
        return Offer(row, plan, start, end - start, self._chain.empty(stage, start, end))

    def own_place(self, stage: str) -> tuple[GroupRow, StageRow]:
        return self._groups[self._chain.group_of[stage]], self._stages[stage]

    def record_plan(self, row: StageRow, reads: tuple[int, int]) -> tuple[StageRow, str]:
        self._fence_stage(row)
        version = row.plan_version + 1
        self._stages[row.stage] = replace(self._stages[row.stage], plan_version=version)
        self._plans[row.stage, row.head + 1] = reads
        return replace(row, plan_version=version), self._insert_attempt(row)

    def pass_over(self, row: StageRow, reads: tuple[int, int]) -> None:
        self._fence_stage(row)
        self._stages[row.stage] = replace(row, plan_version=row.plan_version + 1)
        self._move_cursor(row.stage, reads)

    def _move_cursor(self, stage: str, reads: tuple[int, int]) -> None:
        cursor = self._chain.cursor_of[stage]
        if self._cursors[cursor] != reads[0]:
            raise LedgerError(f"input does not start at {reads[0]}", stage=stage, operation="commit")
        self._cursors[cursor] = reads[1]

    def open_attempt(self, row: StageRow) -> str:
        self._fence_generation(row)
        return self._insert_attempt(row)

    def close_attempt(self, row: StageRow, attempt: str) -> None:
        self._fence_generation(row)
        if self._attempts[attempt].status == "open":
            self._attempts[attempt].status = "closed"

    def commit(self, row: StageRow, attempt: str, reads: tuple[int, int]) -> None:
        try:
            self._fence_stage(row)
        except FencedError:
            if attempt not in [
                one.attempt for one in self._manifests[row.stage] if one.epoch == row.head + 1
            ]:
                raise
            return
        if self._attempts[attempt].status != "open":
            raise FencedError(f"attempt {attempt} was closed and cannot commit", operation="commit")
        self._move_cursor(row.stage, reads)
        self._attempts[attempt].status = "committed"
        self._stages[row.stage] = replace(self._stages[row.stage], head=row.head + 1)
        self._manifests[row.stage].append(Manifest(row.head + 1, attempt, *reads))

    def sink_place(self) -> tuple[int, int]:
        return self._cursors[self._chain.sink_cursor], self._stages[self._chain.last].head

    def move_sink(self, generation: int, epoch: int) -> None:
        self._fence(generation)
        if self._cursors[self._chain.sink_cursor] == epoch:
            self._cursors[self._chain.sink_cursor] = epoch + 1

    def backlog(self) -> Backlog:
        unread = {
            stage: self._end(stage) - self._cursors.get(self._chain.cursor_of[stage], 0)
            for stage in self._chain.stages
        }
        planned = [name for name, row in self._stages.items() if (name, row.head + 1) in self._plans]
        last = self._stages.get(self._chain.last)
        published = self._cursors.get(self._chain.sink_cursor, 0)
        return Backlog(self._items, unread, planned, (last.head + 1 if last else 0) - published)

    # Parts of transactions.

    def _assign(self, row: GroupRow, primary: str, members: Collection[str]) -> int:
        generation = self._next_generation()
        if row.primary != primary:
            self._orphan(row)
        survivors = {*members, primary} & {*row.members}
        ordered = (primary, *sorted({*members} - {primary}))
        self._groups[row.group] = replace(row, generation=generation, primary=primary, members=ordered)
        self._give_stages(self._groups[row.group], kept=row.generation if survivors else None)
        return generation

    def _give_stages(self, row: GroupRow, kept: int | None = None) -> None:
        for stage in row.stages:
            if stage in self._stages:
                self._stages[stage] = replace(self._stages[stage], generation=row.generation)
        for attempt in self._attempts.values():
            if attempt.stage in row.stages and attempt.status == "open":
                if attempt.generation == kept:
                    attempt.generation = row.generation
                elif attempt.generation < row.generation:
                    attempt.status = "closed"

    def _orphan(self, row: GroupRow) -> None:
        if row.primary is not None:
            self._orphaned |= {stage for stage in row.stages if stage in self._stages}

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _insert_attempt(self, row: StageRow) -> str:
        attempt = f"attempt-{len(self._attempts) + 1}"
        self._attempts[attempt] = _Attempt(row.stage, row.generation)
        return attempt

    def _end(self, stage: str) -> int:
        if stage not in self._chain.before:
            return self._items
        before = self._stages.get(self._chain.before[stage])
        return before.head + 1 if before else 0

    def _fence_supervisor(self, supervisor: int) -> None:
        if supervisor != self._supervisor:
            raise FencedError(f"supervisor {supervisor} was deposed", operation="supervise")

    def _fence(self, generation: int) -> GroupRow:
        for row in self._groups.values():
            if row.generation == generation:
                return row
        raise FencedError(f"generation {generation} was deposed", operation="write")

    def _fence_stage(self, row: StageRow) -> None:
        if self._stages[row.stage] != row:
            raise FencedError("refused: the stage is not as expected", operation="commit", stage=row.stage)

    def _fence_generation(self, row: StageRow) -> None:
        now = self._stages[row.stage]
        if (now.branch, now.generation) != (row.branch, row.generation):
            raise FencedError("refused: another generation", operation="attempt", stage=row.stage)
