"""Snapshots under fire: regions of random graphs, run by several processes that die, stand still and come back too late.

A step is what a process of the product does between two looks at its ledger: plan, commit, take a part, coordinate,
carry files, publish, return. At the points at which the product can crash, the process at work may end, or be held up
while others go on, so that it acts on a view that is no longer true. Besides, workers are replaced although they live,
all of them stop or lose power, sources find more, people ask for snapshots, and a clean restart may change the mode.

Once the faults are over, everything must come to rest within a bound: every row read, covered and published.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.errors import FencedError, HoldfastError
from holdfast.ledger.epochs import StageRow
from holdfast.protocols.snapshots import Pace, Part
from sim.checker import Violation
from sim.snapshot_model import ModelStore
from sim.snapshot_schedules import FAULTS_STEPS, Row, Schedule, draw
from sim.snapshot_store import Died, Offer, Reads, Store, Surroundings, Worker
from sim.snapshot_target import Target
from sim.snapshot_truth import Truth

SETTLED_STEPS_MAX = 12_000
LOOK_STEPS = 50
STEP_US = 1_000

# A process that is held up lets this many steps of others go by; while it is, others may be held up too.
HELD_UP_STEPS_MAX = 40
HELD_UP_DEPTH_MAX = 3


@dataclass(frozen=True)
class InHand:
    """An epoch whose work is done and that is not committed yet."""

    row: StageRow
    attempt: str
    reads: Reads
    rows: list[Row]
    path: str


class World:
    """A schedule while it runs."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        make_store: Callable[[Surroundings], Store],
        trace: list[str],
    ) -> None:
        self.schedule, self.rng, self.trace = schedule, rng, trace
        self.counts: Counter[str] = Counter()
        self.truth = Truth(schedule.graph)
        self.step = 0
        self._mode = schedule.mode
        self._calm = not schedule.faulty
        self._stack: list[Worker] = []
        self._names = self._paths = 0
        self._in_hand: dict[tuple[str, str], InHand] = {}  # by worker and stage
        self.store = make_store(self)
        self.targets = {
            sink: Target(self.reach, lambda path, sink=sink: self.truth.published(sink, path))
            for sink in schedule.graph.sinks
        }
        self.workers: list[Worker] = []
        self._due: dict[str, int] = {}  # by group without a worker, when it gets one
        for group in schedule.groups:
            self._start(group)

    # What a store is told and tells.

    def now_us(self) -> int:
        return self.step * STEP_US

    def mode(self) -> str:
        return self._mode

    def pace(self) -> Pace:
        one = self.schedule
        timeout = 1_000_000 if self._calm else one.timeout
        return Pace(
            one.every * STEP_US, one.min_pause * STEP_US, one.max_concurrent, timeout * STEP_US, 1 << 30
        )

    def reach(self, point: str) -> None:
        """End here, or be held up, or neither."""
        self.counts[point] += 1
        worker = self._stack[-1]
        if self._calm:
            return
        drawn = self.rng.random()
        if drawn < self.schedule.crash:
            self.note(f"{worker.name} ends at {point}")
            self.counts[f"ended at {point}"] += 1
            self._end(worker)
            raise Died
        if drawn < self.schedule.crash + self.schedule.pause and len(self._stack) < HELD_UP_DEPTH_MAX:
            self.counts[f"held up at {point}"] += 1
            self.note(f"{worker.name} is held up at {point}")
            for _ in range(self.rng.randint(1, HELD_UP_STEPS_MAX)):
                self.advance()
            self.note(f"{worker.name} goes on from {point}")
            if not worker.lives:
                raise Died

    def carried(self, paths: Sequence[str]) -> None:
        self.truth.carried(paths)

    def captured(self, number: int, mode: str, parts: Mapping[str, Part]) -> None:
        said = {stage: (part.epoch, sorted(part.positions.items())) for stage, part in sorted(parts.items())}
        self.note(f"snapshot {number} is committed: {said}")
        self.counts[f"captured {mode}"] += 1
        self.truth.captured(number, mode, parts)

    def returned(self, number: int, mode: str) -> None:
        found = self.store.standings()
        self.note(f"returned to snapshot {number}: {dict(sorted(found.heads.items()))}")
        self.counts[f"returned {mode}"] += 1
        self.truth.returned(mode, found.heads, found.positions)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.step:5d} {'  ' * len(self._stack)}{what}")

    # Time goes by.

    def run(self) -> None:
        """Until everything is at rest, or too late."""
        while self.step < (FAULTS_STEPS if self.schedule.faulty else 0):
            self.advance()
        self._calm = True
        calm = self.step
        while amiss := self._unsettled():
            if self.step - calm > SETTLED_STEPS_MAX:
                raise Violation(f"not at rest {SETTLED_STEPS_MAX} steps after the last fault: {amiss}")
            for _ in range(LOOK_STEPS):
                self.advance()
        self.truth.settled()
        self.counts["repeats"] += bool(self.truth.repeated)

    def advance(self) -> None:
        """Somebody does something, or something befalls them."""
        self.step += 1
        for group, due in list(self._due.items()):
            if due <= self.step:
                self._start(group)
        drawn = self.rng.random()
        if not self._calm and drawn < self.schedule.befall:
            self._befall()
        elif not self._calm and drawn < self.schedule.befall + self.schedule.wishes:
            self.store.ask()
            self.counts["asked"] += 1
            self.note("somebody asks for a snapshot")
        elif drawn > 0.8 or self._calm:
            self._discover()
        if self.workers:
            self._act(self.rng.choice(self.workers))

    def _discover(self) -> None:
        source = self.rng.choice(self.schedule.graph.sources)
        known = self.truth.items[source]
        number = min(self.rng.randint(1, 3), self.schedule.items - len(known))
        if number > 0:
            known.extend((source, at, "") for at in range(len(known), len(known) + number))
            self.store.add_items(source, len(known) - number, number)

    def _unsettled(self) -> list[str]:
        """What is still amiss."""
        found = [f"{group} has no worker" for group in self._due]
        brought = sum(len(rows) for rows in self.truth.items.values())
        found += ["sources have more"] * (brought < self.schedule.items * len(self.truth.items))
        found += [
            f"{stage} has something unread" for stage in self.schedule.graph.inputs if self._has_unread(stage)
        ]
        found += [f"{stage} has an epoch in hand" for _, stage in self._in_hand]
        found += ["snapshots are under way or due"] * (not self.store.is_quiet())
        return found + ["not all has left"] * (not self._all_left())

    def _has_unread(self, stage: str) -> bool:
        """Whether a stage stands before the end of an input: also what holds no rows is to be left behind."""
        line = self.truth.lines[stage]
        ends = {
            name: len(self.truth.items[name] if producer is None else self.truth.lines[producer].epochs)
            for name, producer in self.schedule.graph.inputs[stage].items()
        }
        return any(line.positions[name] < end for name, end in ends.items())

    def _all_left(self) -> bool:
        sinks = self.schedule.graph.sinks.items()
        return all(len(self.truth.left[sink]) == len(self.truth.lines[stage].epochs) for sink, stage in sinks)

    # What befalls processes.

    def _start(self, group: str) -> None:
        """A worker takes a group over, whether or not another still believes that it has it."""
        self._due.pop(group, None)
        self._names += 1
        name = f"w{self._names}"
        generation = self.store.assign(group, name)
        now_us = self.now_us()
        worker = Worker(
            name, group, self.schedule.groups[group], generation, begun_us=now_us, ended_us=now_us
        )
        self.workers.append(worker)
        self.note(f"{name} takes {group} with generation {generation}")

    def _end(self, worker: Worker) -> None:
        if not worker.lives:
            return
        worker.lives = False
        self.workers.remove(worker)
        for key in [key for key in self._in_hand if key[0] == worker.name]:
            del self._in_hand[key]
        others = [one for one in self.workers if one.group == worker.group]
        if not others and worker.group not in self._due:
            self._due[worker.group] = self.step + self.rng.randint(1, self.schedule.down_max)

    def _befall(self) -> None:
        often = 20 if self.schedule.other_modes else 1
        what = self.rng.choice(("end", "end", "replace", "replace", "power", *["restart"] * often))
        free = [worker for worker in self.workers if not worker.busy]
        self.counts[what] += 1
        self.note(f"befalls: {what}")
        if what == "end" and self.workers:
            self._end(self.rng.choice(self.workers))
        elif what == "replace":
            self._start(self.rng.choice(sorted(self.schedule.groups)))
        elif what == "power":
            self._cut_power()
        elif what == "restart" and len(free) == len(self.workers):
            self._restart(free)

    def _cut_power(self) -> None:
        """What a flow loses that was stopped cleanly it makes again from its plans, which is not modelled here."""
        if any(worker.recovered and self._is_inside(worker.group) for worker in self.workers):
            for worker in list(self.workers):
                self._end(worker)
            self.truth.power_cut()

    def _is_inside(self, group: str) -> bool:
        return bool(self.schedule.graph.inside & {*self.schedule.groups[group]})

    def _awaits_return(self) -> bool:
        """Whether somebody will bring the region back, who has not yet begun or not got that far."""
        groups = {*self._due, *(worker.group for worker in self.workers if not worker.recovered)}
        return any(self._is_inside(group) for group in groups)

    def _restart(self, free: list[Worker]) -> None:
        """All stop cleanly; who has been replaced meanwhile just ends."""
        for worker in free:
            with contextlib.suppress(FencedError):
                self.store.leave(worker)
            self._end(worker)
        if self.schedule.other_modes:
            self._mode = self.rng.choice((self.schedule.mode, *self.schedule.other_modes))
            self.counts["mode changed"] += 1

    # What processes do.

    def _act(self, worker: Worker) -> None:
        """One of its loops takes a step; before it has recovered there are none."""
        loop, step = (
            self._next_step(worker) if worker.recovered else ("recover", lambda: self._recover(worker))
        )
        if loop in worker.busy or "recover" in worker.busy:
            return
        self._stack.append(worker)
        worker.busy.add(loop)
        try:
            step()
        except Died:
            pass
        except FencedError:
            self._fenced(worker)
        finally:
            worker.busy.discard(loop)
            self._stack.pop()

    def _recover(self, worker: Worker) -> None:
        self.store.recover(worker)
        worker.recovered = True

    def _next_step(self, worker: Worker) -> tuple[str, Callable[[], None]]:
        drawn, stage = self.rng.random(), self.rng.choice(worker.stages)
        sinks = [sink for sink, of in self.schedule.graph.sinks.items() if of in worker.stages]
        if drawn < 0.45:
            works = self.rng.random() < max(0.1, self.schedule.slow[stage])
            return f"stage {stage}", lambda: self._work(worker, stage) if works else None
        if drawn < 0.75:
            return "snapshot", lambda: self.store.snapshot_step(worker)
        if drawn < 0.87:
            return "ship", lambda: self.store.ship(worker, stage)
        if drawn < 0.97 and sinks:
            sink = self.rng.choice(sinks)
            return f"sink {sink}", lambda: self.store.sink_step(worker, sink, self.targets[sink])
        return "sweep", lambda: self.truth.trimmed(stage, self.store.trimmable(worker, stage))

    def _work(self, worker: Worker, stage: str) -> None:
        held = self._in_hand.pop((worker.name, stage), None)
        if held is None:
            self._plan(worker, stage)
            return
        self.reach("epoch.before_commit")
        self._commit(worker, held)
        self.counts["commit"] += 1
        self.note(f"{worker.name} commits {stage} epoch {held.row.head + 1}: {held.reads}")
        newest = self.store.generation_of(worker)
        if newest is None:
            raise Violation(
                f"{worker.name}, which was replaced, has committed {stage} epoch {held.row.head + 1}"
            )
        self.truth.committed(stage, held.row.head + 1, held.path, held.reads, held.rows)

    def _commit(self, worker: Worker, held: InHand) -> None:
        """One that is refused and still has its place tries once more under its new generation, as members do."""
        rest = held.attempt, held.reads, held.path, len(self.truth.files[held.path].rows)
        try:
            self.store.commit(held.row, *rest)
        except FencedError:
            generation = self.store.generation_of(worker)
            if generation in (None, held.row.generation):
                raise
            self.store.commit(replace(held.row, generation=generation), *rest)

    def _plan(self, worker: Worker, stage: str) -> None:
        offer = self.store.offer(worker, stage)
        if offer is None:
            return
        reads = offer.planned or self._taken(stage, offer)
        if reads is None:
            return
        named = [
            path
            for name, (start, stop) in reads.items()
            for path in offer.files.get(name, ())[: stop - start]
        ]
        if not self.truth.are_there(named) and self._awaits_return():
            return
        rows = self._read(offer, reads)
        if not rows and offer.planned is None:
            self._pass_over(worker, stage, offer, reads)
            return
        self.reach("epoch.before_plan")
        if offer.planned is None:
            row, attempt = self.store.record_plan(offer.row, reads)
        else:
            row, attempt = offer.row, self.store.open_attempt(offer.row)
        self._paths += 1
        path = f"{stage}/{self._paths}"
        self.truth.written(path, stage, rows)
        self._in_hand[worker.name, stage] = InHand(row, attempt, reads, rows, path)

    def _pass_over(self, worker: Worker, stage: str, offer: Offer, reads: Reads) -> None:
        ranges = {name: (start, stop) for name, (start, stop) in reads.items() if stop > start}
        if ranges:
            self.reach("pass.before")
            self.store.pass_over(offer.row, ranges)
            self.counts["pass over"] += 1
            self.note(f"{worker.name} passes over {ranges} in {stage}")
            self.truth.passed_over(stage, ranges)
            self.reach("pass.after")

    def _taken(self, stage: str, offer: Offer) -> Reads | None:
        """Some of what there is."""
        offered = {name: len(files) for name, files in offer.files.items()} | dict(offer.sources)
        part = {name: self.rng.randint(0, number) for name, number in sorted(offered.items())}
        if self.rng.random() < 0.5:
            part = offered
        at = offer.positions
        return {name: (at[name], at[name] + part[name]) for name in self.schedule.graph.inputs[stage]}

    def _read(self, offer: Offer, reads: Reads) -> list[Row]:
        rows: list[Row] = []
        for name, (start, stop) in reads.items():
            if name in offer.sources:
                rows += self.truth.items[name][start:stop]
            else:
                rows += self.truth.read(offer.files[name][: stop - start])
        return rows

    def _fenced(self, worker: Worker) -> None:
        """Replaced, or only left behind by a return that others made: then it goes on under its new generation."""
        generation = self.store.generation_of(worker)
        self.counts["went on" if generation else "refused"] += 1
        if generation is None or not worker.lives:
            self.note(f"{worker.name} was replaced, and ends")
            self._end(worker)
            return
        worker.generation = generation


def run(
    seed: int,
    make_store: Callable[[Surroundings], Store] = ModelStore,
    trace: bool = False,
    mode: str | None = None,
    faulty: bool | None = None,
    changing: bool | None = None,
) -> tuple[Counter[str], list[str]]:
    """Run the schedule of a seed; raises Violation with the seed and how to see its steps."""
    rng = random.Random(seed)
    schedule = draw(seed, rng, mode, faulty, changing)
    steps: list[str] = []
    try:
        world = World(schedule, rng, make_store, steps)
        world.run()
    except (Violation, HoldfastError) as found:
        said = "\n".join(steps) if trace else f"HOLDFAST_SIM_SEED={seed} shows all steps."
        raise Violation(f"{found}\n{schedule}\n{said}") from found
    world.counts[schedule.mode] += 1
    world.counts["cyclic"] += schedule.graph.cyclic
    return world.counts, [str(schedule), *steps]
