"""Substreams under fire: a seeded model of tasks over a random graph, their channels, and the agent that tracks labels.

The tasks are durable where Holdfast's stages are: what an epoch consumes is planned before the work, and consumption,
emission, what is held and the report become true in one commit. Everything else may go wrong: a task dies between plan
and commit and replays the plan, or after the commit and before its report is sent; reports and notices are delayed,
reordered, lost and repeated; a shard of the agent dies and comes back with what it last saved. All faults end.

What is verified: whenever a tracker says that a label has ended, no source has it open, no message of it is unread and
no task holds rows of it, and none ever will; whenever it says that a task is due, nothing above that task can still send
it rows; no report of a correct task is refused; and once the faults are over, every label ends.
What is not: rows, rollbacks to another branch, and how long an end takes to be noticed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.core.errors import HoldfastError
from holdfast.protocols import message_numbers, punctuation, tracker
from holdfast.protocols.message_numbers import Carried, Segment
from holdfast.protocols.substreams import Change, Node, Report, Verdict
from sim.checker import Violation
from sim.substream_schedules import FAULTS_TICKS, Schedule, draw
from sim.substream_truth import Truth

KEY = b"flow"
BRANCH = 0
SETTLED_TICKS_MAX = 3_000  # and this long after, everything has ended
DOWN_TICKS_MAX = 60
TICK_EVERY = 20  # how often the agent saves, and what was not acknowledged is sent again


@dataclass(frozen=True)
class Entry:
    """A message in a channel, or a punctuation behind the messages."""

    label: str
    segment: Segment | None  # None: a punctuation
    sender: Node
    hops: int  # how much further what is made of it may go: so that a cycle comes to rest
    visible: int


@dataclass(frozen=True)
class Plan:
    """What an epoch does, decided before the work; the seed stands for the author's code."""

    entries: tuple[Entry, ...]
    finals: tuple[str, ...]  # labels to end
    released: tuple[str, ...]  # labels to send on before their end, as a watermark would have it
    script: tuple[tuple[str, str], ...]
    seed: int


@dataclass(frozen=True)
class Manifest:
    """What a report is made of, whenever it has to be made again."""

    epoch: int
    consumed: tuple[tuple[Segment, str], ...]
    emitted: tuple[tuple[Segment, str], ...]
    touched: frozenset[str]
    holds: frozenset[str]  # of those touched, afterwards
    closed: frozenset[str]
    ends: tuple[tuple[Node, str], ...]

    def changes(self) -> Iterator[Change]:
        consumed = message_numbers.tally(KEY, Carried.of(self.consumed))
        emitted = message_numbers.tally(KEY, Carried.of(self.emitted))
        for label in sorted(self.touched):
            took, gave = (part.get(label, message_numbers.Tally(0, 0)) for part in (consumed, emitted))
            yield Change(
                label,
                took.number ^ gave.number,
                gave.messages,
                took.messages,
                label in self.holds,
                label in self.closed,
                tuple(sender for sender, of in self.ends if of == label),
            )


@dataclass
class Task:
    """A node: what survives its crash, and what does not."""

    node: Node
    script: list[tuple[str, str]]
    inbox: dict[Node, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, list[int]] = field(default_factory=dict)  # by label, the hops that its rows have left
    plan: Plan | None = None
    manifests: list[Manifest] = field(default_factory=list)
    lives: bool = True
    attempt: int = 0
    notices: set[str] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)  # by shard, up to which epoch
    reports: dict[int, dict[int, Report]] = field(default_factory=dict)  # by epoch and shard, as computed

    def forget(self) -> None:
        self.attempt += 1
        self.notices, self.acked, self.reports = set(), {}, {}


class Agent:
    """A shard of the agent: it acknowledges what it has saved."""

    def __init__(self, world: World, shard: int) -> None:
        self._world, self._shard = world, shard
        self.tracker = tracker.Tracker(world.schedule.graph)
        self.saved = json.dumps(self.tracker.to_json())
        self._unsaved: list[Report] = []
        self.lives = True

    def receive(self, message: str) -> None:
        if not self.lives:
            return
        report = Report.from_json(json.loads(message))
        verdict = self.tracker.apply(report)
        self._world.counts[f"report {verdict.value}"] += 1
        if verdict is not Verdict.EARLY:
            self._unsaved.append(report)
        for change in report.changes:
            if self.tracker.ended(change.label):
                self._world.says_ended(change.label)

    def tick(self) -> None:
        """Save, acknowledge, and tell those whose turn it is."""
        if not self.lives:
            return
        self.saved = json.dumps(self.tracker.to_json())
        for report in self._unsaved:
            task = self._world.tasks[report.node]
            self._world.send(lambda task=task, epoch=report.epoch: self._ack(task, epoch))
        self._unsaved = []
        for label in self.tracker.open_labels():
            for notice in self.tracker.notices(label):
                self._world.send(lambda notice=notice: self._world.notify(notice))

    def crash(self) -> None:
        if not self.lives:
            return
        self._world.counts["agent crash"] += 1
        self.lives, self._unsaved = False, []
        self._world.after(self._world.rng.randint(1, DOWN_TICKS_MAX), self.restart)

    def restart(self) -> None:
        self.tracker = tracker.Tracker.from_json(self._world.schedule.graph, json.loads(self.saved))
        self.lives = True

    def _ack(self, task: Task, epoch: int) -> None:
        task.acked[self._shard] = max(task.acked.get(self._shard, -1), epoch)


class World:
    """A schedule while it runs."""

    def __init__(self, schedule: Schedule, rng: random.Random, trace: list[str] | None) -> None:
        self.schedule, self.rng, self.trace = schedule, rng, trace
        self.now = 0
        self.counts: Counter[str] = Counter()
        self.truth = Truth(schedule)
        self.tasks = {
            node: Task(node, list(schedule.scripts.get(node, ()))) for node in sorted(schedule.graph.nodes)
        }
        self.agents = [Agent(self, shard) for shard in range(schedule.shards)]
        self.passing = punctuation.Punctuations(schedule.graph) if schedule.by == "punctuation" else None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = iter(range(1 << 40))
        for task in self.tasks.values():
            self.after(rng.randint(0, 10), lambda task=task: self._step(task))
        self.after(TICK_EVERY, self._tick)
        for at in schedule.crashes:
            self.after(at, self._crash_one)
        for at in schedule.agent_crashes:
            self.after(at, lambda: rng.choice(self.agents).crash())

    def run(self) -> None:
        """Until every label has ended, or too late."""
        while self.truth.ended != set(self.schedule.labels):
            self.now, _, event = heapq.heappop(self._events)
            if self.now > FAULTS_TICKS + SETTLED_TICKS_MAX:
                raise Violation(f"not ended: {self._unsettled()}")
            event()

    def after(self, ticks: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ticks, next(self._numbers), event))

    def send(self, arrive: Callable[[], None]) -> None:
        """Over a network that delays, reorders, loses and repeats."""
        faulty = self.now < FAULTS_TICKS
        if faulty and self.rng.random() < self.schedule.loss:
            self.counts["message lost"] += 1
            return
        self.after(self.rng.randint(1, self.schedule.delay_max), arrive)
        if faulty and self.rng.random() < self.schedule.repeat:
            self.after(self.rng.randint(1, self.schedule.delay_max), arrive)

    def notify(self, notice: tracker.Notice) -> None:
        if self.tasks[notice.node].lives:
            self.tasks[notice.node].notices.add(notice.label)

    def says_ended(self, label: str) -> None:
        if label not in self.truth.ended:
            self.note(f"{label} has ended")
        self.truth.says_ended(label)

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:5d} {what}")

    def _tick(self) -> None:
        for agent in self.agents:
            agent.tick()
        if self.passing is None:
            for task in self.tasks.values():
                if task.lives:
                    self._send_reports(task)
        self.after(TICK_EVERY, self._tick)

    def _step(self, task: Task) -> None:
        if task.lives and task.plan is None:
            task.plan = self._planned(task)
            if task.plan:
                self._work(task)
        self.after(self.rng.randint(1, 15), lambda: self._step(task))

    def _work(self, task: Task) -> None:
        attempt = task.attempt
        self.after(self.rng.randint(1, 12), lambda: self._commit(task, attempt))

    def _planned(self, task: Task) -> Plan | None:
        entries = tuple(self._taken(task))
        finals = tuple(sorted(self._due_at(task)))
        released = tuple(
            label for label in sorted(task.held) if label not in finals and self.rng.random() < 0.05
        )
        script = tuple(task.script[: self.rng.randint(0, 3)])
        if not (entries or finals or released or script):
            return None
        return Plan(entries, finals, released, script, self.rng.getrandbits(32))

    def _taken(self, task: Task) -> Iterator[Entry]:
        """With punctuations, the first of each channel, as they keep its order; else any that have arrived."""
        for channel in task.inbox.values():
            if self.passing is not None:
                arrived = list(itertools.takewhile(lambda entry: entry.visible <= self.now, channel))
                yield from arrived[: self.rng.randint(0, len(arrived))]
            else:
                yield from (e for e in channel if e.visible <= self.now and self.rng.random() < 0.7)

    def _due_at(self, task: Task) -> set[str]:
        if self.passing is None:
            due = task.notices & set(task.held)
            task.notices.clear()
        else:
            due = {label for label in self.passing.open_labels() if task.node in self.passing.due(label)}
        for label in sorted(due):
            self.counts["due"] += 1
            self.truth.says_due(label, task.node)
        return due

    def _commit(self, task: Task, attempt: int) -> None:
        if not task.lives or attempt != task.attempt:
            return
        assert task.plan is not None
        manifest = _Epoch(self, task, task.plan).run()
        task.plan = None
        task.manifests.append(manifest)
        self.counts["commit"] += 1
        self.note(f"{task.node} commits {manifest}")
        if self.passing is not None:
            report = Report(BRANCH, task.node, manifest.epoch, manifest.epoch - 1, tuple(manifest.changes()))
            self.passing.apply(report)
            for change in report.changes:
                if self.passing.ended(change.label):
                    self.says_ended(change.label)
        elif self.now < FAULTS_TICKS and self.rng.random() < 0.05:
            self._crash(task)
        else:
            self._send_reports(task)

    def _send_reports(self, task: Task) -> None:
        """All that were not acknowledged; computed again where a crash has lost them."""
        last: dict[int, int] = {}
        for manifest in task.manifests:
            epoch = manifest.epoch
            if epoch not in task.reports:
                whole = Report(BRANCH, task.node, epoch, epoch - 1, tuple(manifest.changes()))
                task.reports[epoch] = tracker.split(whole, self.schedule.shards, last)
            for shard, report in task.reports[epoch].items():
                last[shard] = epoch
                if epoch > task.acked.get(shard, -1):
                    message = json.dumps(report.to_json())
                    self.send(lambda shard=shard, message=message: self.agents[shard].receive(message))

    def _crash_one(self) -> None:
        """Mostly one that is at work: what is planned and not committed is where replays begin."""
        working = [task for task in self.tasks.values() if task.plan] if self.rng.random() < 0.7 else []
        self._crash(self.rng.choice(working or list(self.tasks.values())))

    def _crash(self, task: Task) -> None:
        if not task.lives:
            return
        self.counts["task crash"] += 1
        self.counts["task crash with a plan"] += task.plan is not None
        self.note(f"{task.node} crashes")
        task.lives = False
        task.forget()
        if self.passing is not None:
            saved = json.loads(json.dumps(self.passing.to_json()))
            self.passing = punctuation.Punctuations.from_json(self.schedule.graph, saved)
        self.after(self.rng.randint(1, DOWN_TICKS_MAX), lambda: self._restart(task))

    def _restart(self, task: Task) -> None:
        task.lives = True
        if task.plan:
            self._work(task)

    def _unsettled(self) -> dict[str, str]:
        """What the tracker says that the labels wait for."""
        open_labels = [label for label in self.schedule.labels if label not in self.truth.ended]
        if self.passing is not None:
            return {label: str(self.passing.waits_for(label)) for label in open_labels}
        agents = {label: self.agents[tracker.shard_of(label, self.schedule.shards)] for label in open_labels}
        return {label: str(agent.tracker.waits_for(label)) for label, agent in agents.items()}


class _Epoch:
    """One execution of a plan: the same in every replay."""

    def __init__(self, world: World, task: Task, plan: Plan) -> None:
        self._world, self._task, self._plan = world, task, plan
        self._rng = random.Random(plan.seed)
        self._epoch = len(task.manifests)
        self._emitted: list[tuple[Segment, str]] = []
        self._positions: Counter[str] = Counter()

    def run(self) -> Manifest:
        task, plan, truth = self._task, self._plan, self._world.truth
        closed = set()
        for what, label in plan.script:
            if what == "emit":
                self._emit(label, self._rng.randint(1, 5))
            else:
                closed.add(label)
        for entry in plan.entries:
            task.inbox[entry.sender].remove(entry)
            if entry.segment:
                truth.unread[entry.label].discard(entry.segment)
                self._process(entry)
        for label in (*plan.released, *plan.finals):
            for hops in task.held.pop(label, ()):
                self._emit(label, hops - 1)
        if self._world.passing is not None:
            closed |= set(plan.finals)
        del task.script[: len(plan.script)]
        return self._published(closed)

    def _process(self, entry: Entry) -> None:
        if self._task.node.stage in self._world.schedule.stateful and self._rng.random() < 0.6:
            self._task.held.setdefault(entry.label, []).append(entry.hops)
        else:
            for _ in range(self._rng.choice((0, 1, 1, 1, 2))):
                self._emit(entry.label, entry.hops - 1)

    def _emit(self, label: str, hops: int) -> None:
        """One segment of the label, which every stage reads that reads this one."""
        if hops < 0:
            return
        graph, node = self._world.schedule.graph, self._task.node
        position = self._positions[label]
        self._positions[label] += 1
        for stage in graph.readers[node.stage]:
            reader = self._rng.choice(graph.nodes_of(stage))
            segment = Segment(BRANCH, node, self._epoch, position, reader)
            self._emitted.append((segment, label))
            self._put(Entry(label, segment, node, hops, self._arrival()), reader)
            self._world.truth.unread[label].add(segment)

    def _published(self, closed: set[str]) -> Manifest:
        node, world, truth = self._task.node, self._world, self._world.truth
        for label in sorted(closed):
            truth.open[label].discard(node)
            if world.passing is not None:
                for one in punctuation.punctuations(world.schedule.graph, node, label):
                    self._put(Entry(label, None, node, 0, self._arrival()), one.reader)
        consumed = tuple((entry.segment, entry.label) for entry in self._plan.entries if entry.segment)
        ends = tuple((entry.sender, entry.label) for entry in self._plan.entries if not entry.segment)
        for label, holders in truth.held.items():
            (holders.add if label in self._task.held else holders.discard)(node)
        plan = self._plan
        touched = {label for _, label in (*consumed, *self._emitted, *ends)} | closed
        touched |= {*plan.finals, *plan.released}
        for label in touched:
            truth.touched(label, node)
        return Manifest(
            self._epoch, consumed, tuple(self._emitted), frozenset(touched),
            frozenset(touched & self._task.held.keys()), frozenset(closed), ends,
        )  # fmt: skip

    def _put(self, entry: Entry, reader: Node) -> None:
        self._world.tasks[reader].inbox[self._task.node].append(entry)

    def _arrival(self) -> int:
        return self._world.now + self._world.rng.randint(0, self._world.schedule.delay_max)


def run(seed: int, trace: bool = False, by: str | None = None) -> Counter[str]:
    """Run the schedule of a seed; raises Violation with the seed and how to see its steps."""
    rng = random.Random(seed)
    schedule = draw(seed, rng, by)
    world = World(schedule, rng, [] if trace else None)
    try:
        world.run()
    except (Violation, HoldfastError) as found:
        steps = "\n".join(world.trace or [f"HOLDFAST_SIM_SEED={seed} shows all steps."])
        raise Violation(f"{found}\n{schedule}\n{steps}") from found
    world.counts[schedule.by] += 1
    world.counts["cyclic"] += bool(schedule.graph.cyclic)
    if world.trace is not None:
        print("\n".join([str(schedule), *world.trace]))
    return world.counts
