"""A worker of the simulation: what the runtime's worker does with the ledger, without Spark.

It raises its lease, waits until it is a member of its group, and then plans, computes and commits epochs. The
primary also recovers orphaned stages, discovers the source's items and drives the sink. A member that is refused
looks whether it still is one: then it goes on under the new generation with the attempt that it has in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError, SinkError
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.groups import GroupRow
from holdfast.protocols import admission, supervision
from sim.checker import Violation
from sim.store import Chain, Offer
from sim.target import Opening, Target
from sim.world import Call, Process, T, Task, World

BOOT_MS_MAX = 1_500
COMPUTE_MS_MAX = 300
LONG_COMPUTE_MS_MAX = 4_000  # so long that several things can happen to the group meanwhile
EPOCH_ITEMS_MAX = 4
RETRY_MS = 20


class Deposed(Exception):
    """The worker has lost its place in the group."""


@dataclass(frozen=True)
class Job:
    """What a flow is given to do."""

    chain: Chain
    items: int  # that the source will ever have
    item_every_ms: int
    until_idle: bool
    publish_ms_max: int = 3  # how long a target may take for an epoch

    def offered(self, now_ms: int) -> int:
        """How many items the source has by now."""
        return min(self.items, now_ms // self.item_every_ms + 1)


class Worker:
    """One process that runs the stages of a group."""

    def __init__(self, world: World, job: Job, target: Target, name: str, group: str) -> None:
        self._world = world
        self._store = world.store
        self._job = job
        self._target = target
        self._group = group
        self._name = name
        self._generation = 0
        self._is_primary = False
        self._opening: Opening | None = None  # of the target
        self.process: Process = world.begin(name, "worker")
        world.add_task(self.process, self._raise_lease())
        world.add_task(self.process, self._live())
        if job.chain.group_of[job.chain.last] == group:
            world.add_task(self.process, self._feed_sink())

    def _raise_lease(self) -> Task:
        while True:
            self._world.raise_lease(self.process)
            yield limits.LEASE_MS_MAX // limits.LEASE_RAISES + self._world.rng.randint(0, 20), "raise"

    def _live(self) -> Task:
        yield from self._say("note", supervision.STARTING)
        yield self._world.rng.randint(50, BOOT_MS_MAX), "boot"
        yield from self._say("ready", supervision.READY)
        while self.process.lives:
            try:
                row, known = yield from self._read_standing()
                if not known:
                    self._world.end(self.process, "forgotten")
                elif self.process.told_to:
                    yield from self._stop(row)
                else:
                    yield from self._take_part(row)
            except (LedgerError, FencedError):
                yield RETRY_MS, ""
            except Deposed:
                yield from self._lose_place()

    def _take_part(self, row: GroupRow) -> Call[None]:
        """Do what a place in the group asks for."""
        if self._name not in row.members:
            if self._generation:
                raise Deposed
            yield limits.POLL_MS, ""
            return
        self._generation = row.generation
        if row.primary == self._name and not self._is_primary:
            yield from self._take_over()
        worked = False
        if self._is_primary:
            yield from self._discover()
        for stage in self._job.chain.groups[self._group]:
            worked = (yield from self._run_epoch(stage)) or worked
        if not worked and self._is_primary and self._job.until_idle:
            yield from self._finish_if_idle()
        if not worked:
            yield limits.POLL_MS // 2, ""

    def _take_over(self) -> Call[None]:
        generation = self._generation
        for stage in self._job.chain.groups[self._group]:
            yield from self._write("register", partial(self._store.register, generation, stage))
        orphans = yield from self._world.read(self._store.orphans)
        for stage in self._job.chain.groups[self._group]:
            if stage in orphans:
                yield from self._write("recovered", partial(self._store.recovered, generation, stage))
        if self._job.chain.last in self._job.chain.groups[self._group]:
            yield from self._open_sink(generation)
        yield from self._say("active", supervision.ACTIVE)
        self._is_primary = True

    def _discover(self) -> Call[None]:
        if self._job.chain.stages[0] not in self._job.chain.groups[self._group]:
            return
        backlog = yield from self._world.read(self._store.backlog)
        known, offered = backlog.items, self._job.offered(self._world.now_ms)
        if known < offered:
            yield from self._write(
                "discover", lambda: self._store.add_items(self._generation, known, offered)
            )

    # Epochs.

    def _run_epoch(self, stage: str) -> Call[bool]:
        """Finish one epoch if there is one to do; whether there was."""
        generation = self._generation
        offer = yield from self._world.read(lambda: self._store.offer(stage, generation))
        if offer is None or (offer.plan is None and offer.available == 0):
            return False
        if offer.plan is None and offer.available == offer.empty:
            return (yield from self._pass_over(offer))
        row, attempt, reads = yield from self._plan(offer)
        opened = self._world.checker.opened()
        yield self._compute_ms(), "compute"
        yield from self._commit(row, attempt, reads, opened)
        return True

    def _pass_over(self, offer: Offer) -> Call[bool]:
        """Leave behind what holds no rows."""
        reads = offer.start, offer.start + offer.empty
        yield from self._write("pass", lambda: self._store.pass_over(offer.row, reads))
        return True

    def _compute_ms(self) -> int:
        rng = self._world.rng
        return rng.randint(5, LONG_COMPUTE_MS_MAX if rng.random() < 0.15 else COMPUTE_MS_MAX)

    def _plan(self, offer: Offer) -> Call[tuple[StageRow, str, tuple[int, int]]]:
        if offer.plan is not None:
            attempt = yield from self._write("attempt", lambda: self._store.open_attempt(offer.row))
            return offer.row, attempt, offer.plan
        allowance = admission.Allowance(items=self._world.rng.randint(1, EPOCH_ITEMS_MAX))
        filled = offer.start + offer.empty
        taken = admission.admit([admission.Offer(1, 1)] * (offer.available - offer.empty), allowance)
        reads = offer.start, filled + taken
        row, attempt = yield from self._write("plan", lambda: self._store.record_plan(offer.row, reads))
        return row, attempt, reads

    def _commit(self, row: StageRow, attempt: str, reads: tuple[int, int], opened: int) -> Call[None]:
        while True:
            try:
                yield from self._write("commit", partial(self._store.commit, row, attempt, reads))
                return
            except LedgerError:
                yield RETRY_MS, ""
            except FencedError:
                again = yield from self._after_refusal(row, attempt, opened)
                if again is None:
                    return
                row = again

    def _after_refusal(self, row: StageRow, attempt: str, opened: int) -> Call[StageRow | None]:
        """Where the stage stands now, if the attempt can still be committed there."""
        group, now = yield from self._world.read(lambda: self._store.own_place(row.stage))
        if self._name not in group.members:
            self._world.counts["zombie's commit refused"] += 1
            raise Deposed
        self._generation = group.generation
        if (now.head, now.plan_version) != (row.head, row.plan_version):
            self._world.counts["lost a race"] += 1
            yield from self._write("close", lambda: self._store.close_attempt(now, attempt))
            return None
        if now.generation == row.generation:
            self._world.counts["found its attempt closed"] += 1
            self._world.checker.closed_by_others(self._name, opened)
            return None
        self._world.counts["went on as a survivor"] += 1
        return replace(row, generation=now.generation)

    # The sink.

    def _feed_sink(self) -> Task:
        while True:
            yield limits.POLL_MS // 2, ""
            if self._opening is not None:
                try:
                    yield from self._publish_all(self._opening)
                except (FencedError, LedgerError):
                    yield RETRY_MS, ""

    def _open_sink(self, generation: int) -> Call[None]:
        opening = self._target.open(generation)
        yield 1, "open sink.after"
        self._opening = opening

    def _publish_all(self, opening: Opening) -> Call[None]:
        """Publish what is behind, under the generation of the opening; after another was raised, the next one's."""
        if self._generation not in (0, opening.generation):
            self._world.counts["sink opened again"] += 1
            yield from self._open_sink(self._generation)
            return
        position, head = yield from self._world.read(self._store.sink_place)
        for epoch in range(position, head + 1):
            generation = self._publishes_as(opening)
            yield from self._world.read(lambda generation=generation: self._store.refuse_deposed(generation))
            yield self._world.rng.randint(0, self._job.publish_ms_max), "publish.before"
            self._publish(opening, epoch, generation)
            yield self._world.rng.randint(0, 3), "publish.after"
            mover = self._publishes_as(opening)
            yield from self._write("move sink", partial(self._store.move_sink, mover, epoch))

    def _publishes_as(self, opening: Opening) -> int:
        return opening.generation

    def _publish(self, opening: Opening, epoch: int, generation: int) -> None:
        try:
            verdict = self._target.publish(opening, epoch, generation)
        except FencedError:
            self._world.counts["publish refused"] += 1
            self._world.note(self.process, f"publish {epoch}: refused")
            raise
        except SinkError as error:
            raise Violation(f"{self._name} may drive the sink, but: {error}") from error
        self._world.counts[f"publish {verdict}"] += 1
        self._world.note(self.process, f"publish {epoch}: {verdict}")

    # The end.

    def _lose_place(self) -> Call[None]:
        """A primary that was replaced says so and stops; a hot standby stands by again."""
        self._generation, self._opening = 0, None
        if self._is_primary:
            self._world.end(self.process, "deposed")
            yield 0, ""
            return
        yield limits.POLL_MS, ""

    def _finish_if_idle(self) -> Call[None]:
        backlog = yield from self._world.read(self._store.backlog)
        stages = self._job.chain.stages
        own = self._job.chain.groups[self._group]
        upto = stages[: stages.index(own[-1]) + 1]
        done = backlog.items == self._job.items and not any(backlog.unread[name] for name in upto)
        published = backlog.unpublished == 0 or self._job.chain.last not in own
        if done and published and not {*backlog.planned} & {*upto}:
            self._world.checker.finished(upto, self._job.items)
            yield from self._leave(supervision.FINISHED)

    def _stop(self, row: GroupRow) -> Call[None]:
        if self.process.told_to == "fail":
            yield from self._say("fail", supervision.FAILED)
            self._world.end(self.process, "failed")
        elif row.primary == self._name:
            self._generation = row.generation
            yield from self._leave(supervision.STOPPED)
        else:
            self._world.end(self.process, "stopped")

    def _leave(self, status: str) -> Call[None]:
        generation = self._generation
        self._opening = None
        yield from self._write("leave", lambda: self._store.leave(generation, self._name, status))
        yield self._world.rng.randint(10, 2_000), "leave.after"
        self._world.end(self.process, "left")

    # Short forms.

    def _read_standing(self) -> Call[tuple[GroupRow, bool]]:
        return (yield from self._world.read(lambda: self._store.standing(self._group, self._name)))

    def _write(self, step: str, act: Callable[[], T]) -> Call[T]:
        return (yield from self._world.write(self.process, step, act))

    def _say(self, step: str, status: str) -> Call[None]:
        while True:
            try:
                yield from self._write(
                    step, lambda: self._store.update_worker(self._name, status, self.process.pid)
                )
                return
            except LedgerError:
                yield RETRY_MS, ""
