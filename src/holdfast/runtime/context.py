"""What the loops of a worker share: the ledger, the session, the stages, and how to wake and stop each other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import TypeVar

from pyspark.sql import SparkSession

from holdfast.core.errors import FencedError
from holdfast.flow.flow_plan import FlowPlan, SinkSpec
from holdfast.flow.policies import Persist, Policy, Resume
from holdfast.ledger import groups
from holdfast.ledger.files import LayerRow
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.definitions import Target
from holdfast.protocols.snapshots import Region
from holdfast.runtime.news import News
from holdfast.runtime.progress import Progress
from holdfast.runtime.script import UNSCRIPTED, Script
from holdfast.runtime.ticks import Ticks
from holdfast.sources.contract import Source
from holdfast.sources.table_files import TableFiles
from holdfast.spark.bind import BoundStage
from holdfast.spark.cores import Cores
from holdfast.spark.labels import Labels
from holdfast.storage.shipper import DISK, REPLICA, STANDBY, Route

T = TypeVar("T")


class Pins:
    """Layers that a running job of this process reads, by their row in the ledger.

    Finding layers there and holding them is one step, and so is looking at what is held and condemning the rest. If the
    two could mix, a merge that commits in between would let the sweeper take the files that a job has just found.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._lock = Lock()

    @contextmanager
    def hold(self, find: Callable[[], Sequence[LayerRow]]) -> Iterator[Sequence[LayerRow]]:
        """Keep the sweeper off the layers that `find` reads in the ledger."""
        with self._lock:
            found = find()
            ids = [layer.id for layer in found]
            self._counts.update(ids)
        try:
            yield found
        finally:
            with self._lock:
                self._counts.subtract(ids)

    @contextmanager
    def held(self) -> Iterator[set[int]]:
        """What must not be condemned; until this is left, nobody holds anything more."""
        with self._lock:
            yield {i for i, count in self._counts.items() if count > 0}


class Alarm:
    """Wakes every loop of the worker when something was committed."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def join(self) -> Event:
        """A loop's own bell."""
        event = Event()
        self._events.append(event)
        return event

    def ring(self) -> None:
        """Wake all loops."""
        for event in self._events:
            event.set()


@dataclass
class Runtime:
    """One worker's view of its flow."""

    plan: FlowPlan
    stages: dict[str, BoundStage]
    sources: dict[str, Source]
    spark: SparkSession
    ledger: Ledger
    root: Path
    generation: int  # of the group; raised for those that stay when a member is expelled
    cores: Cores
    tasks: int | None  # over which every epoch is to be spread; None: as its rows and the cores suggest
    progress: Progress
    worker: str  # this process, as the ledger calls it
    group: str
    own: tuple[str, ...]  # the stages of the group, in the order of the flow; the others are only read
    direct: bool = True  # whether tasks may read files themselves
    script: Script = UNSCRIPTED
    labels: Labels = field(default_factory=Labels)  # of substreams: where they travel
    tables: dict[str, TableFiles] = field(default_factory=dict)  # that rows are enriched with
    targets: dict[str, Target] = field(default_factory=dict)  # of the sinks that have one which stays
    alarm: Alarm = field(default_factory=Alarm)
    pins: Pins = field(default_factory=Pins)
    stopping: Event = field(default_factory=Event)
    repairing: Lock = field(default_factory=Lock)
    leads: bool = False  # whether this worker drives its group
    draining: Event = field(default_factory=Event)  # the input is taken to have ended
    closing: Event = field(default_factory=Event)  # no new epoch is begun
    computing: set[str] = field(default_factory=set)  # stages with an epoch under way
    heard: dict[str, float] = field(default_factory=dict)  # by source, when it last had something new
    tags: set[str] = field(default_factory=set)
    owns_session: bool = False  # whether nobody else has jobs in the session
    news: News = field(init=False)
    ticks: Ticks = field(init=False)
    region: Region = field(init=False)  # the stages that snapshots capture as one, in the whole flow

    def __post_init__(self) -> None:
        self.region, self.ticks = self.plan.region, Ticks(self.plan.trigger_us)
        self.news = News(self.ledger, self.alarm.ring)

    @property
    def own_stages(self) -> list[BoundStage]:
        """The stages that this worker runs, or would run."""
        return [self.stages[name] for name in self.own]

    @property
    def own_sinks(self) -> list[SinkSpec]:
        """The sinks of these stages."""
        return [sink for sink in self.plan.sinks if sink.stage in self.own]

    @property
    def own_sources(self) -> list[str]:
        """The sources that this worker looks at: each is the business of the group that reads it first."""
        readers = [
            (origin.name, stage.name)
            for stage in self.plan.stages
            for origin in stage.inputs
            if origin.kind == "source"
        ]
        first = {name: stage for name, stage in reversed(readers)}
        return [name for name in self.sources if first.get(name) in self.own]

    def policy(self, stage: str) -> Policy:
        """How a stage recovers."""
        return self.stages[stage].spec.policy

    def silent_us(self, source: str) -> int:
        """How long a source has had nothing new for this process."""
        return int((time.monotonic() - self.heard.get(source, self.progress.started)) * 1e6)

    def route(self, stage: str) -> Route:
        """How far a stage's files are carried."""
        policy, practice = self.policy(stage), self._is_practised_on(stage)
        if policy.resume is Resume.DELTA:
            mirrors = {STANDBY: self.root / STANDBY}
            return Route(disk=False, mirrors=mirrors, every=policy.every, practice=practice)
        if policy.persist is Persist.NEVER:
            rebuilds = policy.resume is Resume.REBUILD
            disk = rebuilds and self.plan.survives != "process"
            return Route(disk=disk, rebuilds=rebuilds, practice=practice)
        mirrors = {REPLICA: Path(self.plan.replica)} if REPLICA in policy.tiers and self.plan.replica else {}
        captured = policy.resume is Resume.RETURN
        return Route(DISK in policy.tiers, mirrors, captured=captured, practice=practice)

    def _is_practised_on(self, stage: str) -> bool:
        """Whether a stage that reads this one has a standby."""
        readers = [
            name
            for kind, _, name in (c.partition(":") for c in self.plan.consumers(stage))
            if kind == "stage"
        ]
        groups_of_readers = {self.plan.group_of(reader) for reader in readers}
        return any(
            policy.members > 1 for group in groups_of_readers for policy in self.plan.policies_of(group)
        )

    def is_member(self) -> bool:
        """Whether this worker may still commit; if so, it knows the group's generation from here on."""
        with self.ledger.read() as tx:
            row = groups.group_row(tx, self.group)
        if row is None or self.worker not in row.members:
            return False
        self.generation = row.generation
        return True

    def surviving(self, act: Callable[[], T]) -> T:
        """What `act` returns. A refusal that only means that the generation was raised for those that stay is tried again."""
        while True:
            generation = self.generation
            try:
                return act()
            except FencedError:
                if not self.is_member() or self.generation == generation:
                    raise

    @contextmanager
    def tagged(self, stage: str, what: str) -> Iterator[str]:
        """A tag for the Spark jobs of one attempt, by which a stop interrupts them."""
        tag = f"holdfast-{self.plan.name}-{stage}-{what}-{self.worker}-{self.generation}"
        self.tags.add(tag)
        try:
            yield tag
        finally:
            self.tags.discard(tag)

    def interrupt_jobs(self) -> None:
        """End the Spark jobs that this worker has under way, from whichever thread.

        Spark Classic knows a tag only in the thread that set it. A session that is the worker's alone has no other jobs, and
        is interrupted as a whole; on a caller's, others may be at work too, and there Classic waits for the jobs to end.
        """
        if self.owns_session:
            self.spark.interruptAll()
            return
        for tag in list(self.tags):
            self.spark.interruptTag(tag)
