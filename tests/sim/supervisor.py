"""A supervisor of the simulation: it looks, asks the real `judge` and `decide`, and applies what they say.

Rules that it follows, and that the runtime's supervisor must follow too: it looks at processes and leases first and
at the ledger afterwards, in one transaction, so that who has ended is never seen without its last words; a lease
that was never raised reads 0, which is not a failed read; who has not said yet which process it is lives only if it
is a child of this supervisor; after a step that failed, everything is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.protocols import detector, supervision
from holdfast.protocols.detector import Belief, Evidence, Terms
from holdfast.protocols.supervision import Action, Admit, Expel, Forget, Group, Promote, Seen, Start
from sim.store import Chain
from sim.world import Call, T, Task, World

# A lease that the judge calls silent has stood still for at least this long: the first of its reads may be as much
# older than it seems as the judge counts of the time between two looks.
SILENCE_MS_MIN = limits.LEASE_MS_MAX - limits.LEASE_LOOK_MS_MAX

TERMS = Terms()


class Supervisor:
    """One process that decides about the workers of a flow."""

    def __init__(
        self, world: World, chain: Chain, wanted: int, hot: bool, spawn: Callable[[str, str], None]
    ) -> None:
        self._world = world
        self._chain = chain
        self._wanted = wanted
        self._hot = hot
        self._spawn = spawn
        self._generation = 0
        self._workers: list[WorkerRow] = []  # as of the last look
        self._beliefs: dict[str, Belief] = {}
        self._accused: dict[str, str] = {}
        self._causes: dict[str, str | None] = {}  # what had really happened to them by then
        self._children: set[str] = set()
        self._last_start_ms: dict[str, int] = {}
        number = sum(process.role == "supervisor" for process in world.processes.values()) + 1
        self.process = world.begin(f"supervisor-{number}", "supervisor")
        world.add_task(self.process, self._live())

    def _live(self) -> Task:
        try:
            self._generation = yield from self._until_answered("supervise", self._world.store.supervise)
            groups = {name: list(stages) for name, stages in self._chain.groups.items()}
            yield from self._until_answered(
                "lay out", lambda: self._world.store.lay_out(self._generation, groups)
            )
            while True:
                yield limits.WATCH_MS, "look"
                try:
                    yield from self._look()
                except LedgerError:
                    continue
        except FencedError:
            self._world.end(self.process, "deposed")

    def _until_answered(self, step: str, act: Callable[[], T]) -> Call[T]:
        while True:
            try:
                return (yield from self._world.write(self.process, step, act))
            except LedgerError:
                yield limits.WATCH_MS, ""

    def _look(self) -> Call[None]:
        watched = [row.worker for row in self._workers]
        lives = {worker: self._world.lives(worker) for worker in watched}
        found = {worker: self._world.evidence_of(worker) for worker in watched}
        self._causes = {worker: self._cause(worker) for worker in watched}
        yield 0, "looked"
        self._accused = {worker: self._judge(worker, evidence) for worker, evidence in found.items()}
        groups, self._workers = yield from self._world.read(self._world.store.groups_and_workers)
        # One that another supervisor was about to start, and that has said nothing yet, may never come.
        self._causes |= {row.worker: "unheard of" for row in self._workers if not self._knows(row)}
        seen = [(row.group, self._see(row, lives)) for row in self._workers]
        for name in self._chain.groups:
            for action in self._decide(groups[name], [one for group, one in seen if group == name]):
                if not self._is_back(action):
                    yield from self._apply(action)

    def _judge(self, worker: str, evidence: Evidence) -> str:
        belief, verdict = detector.judge(self._beliefs.get(worker), evidence, self._world.now_ms, TERMS)
        self._beliefs[worker] = belief
        return verdict.why

    def _knows(self, row: WorkerRow) -> bool:
        return row.process is not None or row.worker in self._children

    def _see(self, row: WorkerRow, lives: Mapping[str, bool]) -> Seen:
        accused = self._accused.get(row.worker, "")
        return Seen(row.worker, row.status, self._knows(row) and lives.get(row.worker, True), accused)

    def _decide(self, row: GroupRow, seen: Sequence[Seen]) -> list[Action]:
        last_ms = self._last_start_ms.get(row.group)
        paused = last_ms is None or self._world.now_ms - last_ms >= limits.START_PAUSE_MS
        may_start = paused and not any(one.status == supervision.STARTING and not one.is_gone for one in seen)
        group = Group(row.group, row.primary, row.members, self._wanted, self._hot, may_start)
        actions = supervision.decide(group, seen)
        for action in actions:
            self._justify(action, row)
        return actions

    def _is_back(self, action: Action) -> bool:
        """Look once more at who is about to lose its place for its silence."""
        match action:
            case Promote(instead_of=str(worker)) | Expel(worker=worker) | Forget(worker=worker):
                accused = self._accused.get(worker, "")
                return bool(accused) and not self._judge(worker, self._world.evidence_of(worker))
        return False

    def _justify(self, action: Action, row: GroupRow) -> None:
        """Tell the checker what has really happened to those who lose their places."""
        losers: set[str] = set()
        if isinstance(action, Promote):
            losers = {*row.members} - {*action.members}
        elif isinstance(action, Expel):
            losers = {action.worker}
        for worker in losers:
            # That a worker has failed is read in the ledger, after the look at the processes.
            process = self._world.processes.get(worker)
            failed = "failed" if process and process.told_to == "fail" else None
            self._world.checker.decided(worker, failed or self._causes.get(worker, "unknown"))

    def _cause(self, worker: str) -> str | None:
        process = self._world.processes.get(worker)
        if process is None:
            return "never started"
        if not process.lives:
            return process.ended if process.ended != "left" else None
        starved_ms = min(self._world.now_ms, process.starved_until_ms) - max(
            process.raised_ms, process.starved_from_ms
        )
        silent_ms = self._world.now_ms - process.raised_ms - max(0, starved_ms)
        return "silent" if silent_ms >= SILENCE_MS_MIN else None

    def _apply(self, action: Action) -> Call[None]:
        store, own = self._world.store, self._generation
        match action:
            case Promote(group=group, worker=worker, members=members, reason=reason):
                yield from self._write("promote", lambda: store.assign(own, group, worker, members, reason))
            case Admit(group, worker):
                yield from self._write("admit", lambda: store.admit(own, group, worker))
            case Expel(group, worker, reason):
                yield from self._write("expel", lambda: store.expel(own, group, worker, reason))
            case Forget(_, worker, reason):
                yield from self._write("forget", lambda: store.forget_worker(own, worker, reason))
            case Start(group=group):
                yield from self._start(group)

    def _start(self, group: str) -> Call[None]:
        self._last_start_ms[group] = self._world.now_ms
        self._world.counts["worker named"] += 1
        worker = f"{group}-{self._world.counts['worker named']}"
        yield from self._write(
            "add worker", lambda: self._world.store.add_worker(self._generation, worker, group)
        )
        yield 0, "spawn"
        self._children.add(worker)
        self._spawn(worker, group)

    def _write(self, step: str, act: Callable[[], T]) -> Call[T]:
        self._world.note(self.process, f"means to {step}")
        return (yield from self._world.write(self.process, step, act))
