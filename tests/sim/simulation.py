"""One schedule: a flow, its supervisor and workers, and the faults of a seed; then everything must come right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core import limits
from sim import faults
from sim.checker import Checker, Violation
from sim.faults import Fault
from sim.model_ledger import ModelLedger
from sim.store import Chain, Store
from sim.supervisor import Supervisor
from sim.target import Target
from sim.worker import Job, Worker
from sim.world import Process, Task, World

# After the last fault, a schedule has this long until its flow has done everything and is whole again: the longest
# pause, a lease, some starts, and the work itself.
SETTLED_MS_MAX = 40_000
LOOK_MS = 1_000

SHAPES = (
    {"g1": ("a",)},
    {"g1": ("a", "b")},
    {"g1": ("a",), "g2": ("b",)},
    {"g1": ("a", "b"), "g2": ("c",)},
    {"g1": ("a",), "g2": ("b", "c")},
)
GAPS_MAX = 1_000

MakeStore = Callable[[Chain, Callable[[], int]], Store]


@dataclass
class Schedule:
    """What a seed stands for."""

    seed: int
    job: Job
    wanted: int
    hot: bool
    faults: list[Fault]

    def __str__(self) -> str:
        job = self.job
        manner = ", hot" * self.hot + ", until idle" * job.until_idle + ", with gaps" * job.chain.has_gaps
        what = (
            f"{job.items} items, one every {job.item_every_ms} ms, up to {job.publish_ms_max} ms to publish"
        )
        lines = [f"seed {self.seed}: groups {job.chain.groups}, {self.wanted} workers each{manner}, {what}"]
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)


@dataclass
class Outcome:
    """What happened in a schedule."""

    groups: int
    counts: Counter[str]
    deposed: int
    settled_ms: int
    trace: list[str] = field(default_factory=list)


def draw(
    seed: int, rng: random.Random, kinds: frozenset[str] = faults.ALL_KINDS, faults_max: int = 6
) -> Schedule:
    """The schedule of a seed."""
    wanted = rng.choice((1, 2, 3, 3))
    shape, items, every_ms = rng.choice(SHAPES), rng.randint(3, 25), rng.randint(20, 400)
    until_idle = rng.random() < 0.3
    # Every other target is so slow that its sink has epochs in hand whatever happens.
    publish_ms_max = rng.choice((3, 1_500))
    hot = wanted > 1 and rng.random() < 0.6
    drawn = faults.draw(rng, kinds, faults_max)
    gaps = rng.randint(1, GAPS_MAX) if rng.random() < 0.5 else 0
    job = Job(Chain(shape, gaps), items, every_ms, until_idle, publish_ms_max)
    return Schedule(seed, job, wanted, hot, drawn)


def run(
    seed: int,
    make_store: MakeStore = ModelLedger,
    kinds: frozenset[str] = faults.ALL_KINDS,
    trace: bool = False,
) -> Outcome:
    """Run the schedule of a seed; raises Violation with the seed and how to see its steps."""
    rng = random.Random(seed)
    schedule = draw(seed, rng, kinds)
    simulation = Simulation(schedule, rng, make_store, trace)
    try:
        return simulation.run()
    except Violation as violation:
        steps = "\n".join(simulation.world.trace or [f"HOLDFAST_SIM_SEED={seed} shows all steps."])
        raise Violation(f"{violation}\n{schedule}\n{steps}") from violation


class Simulation:
    """A schedule while it runs."""

    def __init__(self, schedule: Schedule, rng: random.Random, make_store: MakeStore, trace: bool) -> None:
        self.schedule = schedule
        job = schedule.job
        checker = Checker(job.chain)
        # A copy, as faults that have struck are taken off; those of the world come by the clock.
        of_processes = [fault for fault in schedule.faults if fault.role != "world"]
        store = make_store(job.chain, lambda: self.world.wall_ms())
        self.world = World(rng, store, checker, of_processes, [] if trace else None)
        self._target = Target(checker)
        outside = Process("world", "world", 0)
        for fault in schedule.faults:
            if fault.role == "world":
                self.world.add_task(outside, self._befall(outside, fault))
        self.world.add_task(outside, self._keep_supervised())

    def run(self) -> Outcome:
        """Until everything is done and whole, or too late."""
        passing = [one for one in self.schedule.faults if one.kind not in ("clock step", faults.STANDS_STILL)]
        lengths = [fault.length_ms for fault in passing]
        self.world.run(faults.FAULTS_MS + max(lengths) if lengths else LOOK_MS)
        self.world.faults.clear()
        calm_ms = self.world.now_ms
        while not self._is_settled():
            if self.world.now_ms - calm_ms > SETTLED_MS_MAX:
                raise Violation(f"not settled {SETTLED_MS_MAX} ms after the last fault: {self._unsettled()}")
            self.world.run(self.world.now_ms + LOOK_MS)
        return Outcome(
            len(self.schedule.job.chain.groups),
            self.world.counts,
            self.world.checker.deposed,
            self.world.now_ms - calm_ms,
            self.world.trace or [],
        )

    def _keep_supervised(self) -> Task:
        """Somebody starts the supervisor again; or a second one, while the first stands still."""
        world, pause_ms = self.world, 0
        while True:
            alive = [p for p in world.processes.values() if p.role == "supervisor" and p.lives]
            if not alive or world.second_supervisor:
                yield pause_ms, ""
                world.second_supervisor = False
                Supervisor(
                    world, self.schedule.job.chain, self.schedule.wanted, self.schedule.hot, self._spawn
                )
                pause_ms = world.rng.randint(0, 3_000)
            yield limits.POLL_MS, ""

    def _befall(self, outside: Process, fault: Fault) -> Task:
        yield fault.at_ms, ""
        self.world.note(outside, f"FAULT {fault.kind}, {fault.length_ms} ms")
        self.world.counts[fault.kind] += 1
        if fault.kind == "outage":
            self.world.outage_until_ms = self.world.now_ms + fault.length_ms
        else:
            self.world.wall_step_ms += fault.length_ms * self.world.rng.choice((-1, 1))

    def _spawn(self, worker: str, group: str) -> None:
        Worker(self.world, self.schedule.job, self._target, worker, group)

    def _is_settled(self) -> bool:
        return not self._unsettled()

    def _unsettled(self) -> list[str]:
        """What is still amiss."""
        backlog = self.world.store.backlog()
        found = [f"{stage} has {left} unread" for stage, left in backlog.unread.items() if left]
        found += [f"{backlog.items} of {self.schedule.job.items} items"] * (
            backlog.items < self.schedule.job.items
        )
        found += [f"{backlog.unpublished} unpublished"] * (backlog.unpublished > 0)
        found += [f"{sorted(backlog.planned)} planned"] * bool(backlog.planned)
        groups, workers = self.world.store.groups_and_workers()
        for name, row in groups.items():
            own = [worker for worker in workers if worker.group == name]
            if row.primary is None and any(worker.status == "finished" for worker in own):
                continue
            living = [one.worker for one in own if self.world.lives(one.worker)]
            found += [f"{name} has {living} of {self.schedule.wanted} workers"] * (
                len(living) != self.schedule.wanted
            )
            found += [f"{name} keeps {len(own) - len(living)} of the dead"] * (len(own) != len(living))
            whole = row.primary in living and (not self.schedule.hot or len(row.members) == len(living))
            found += [f"{name} has primary {row.primary}, members {row.members}"] * (not whole)
        return found
