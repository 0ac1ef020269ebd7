"""What the loops of a worker share: the ledger, the session, the stages, and how to wake and stop each other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from pyspark.sql import SparkSession

from holdfast.flow.planner import FlowPlan
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.progress import Progress
from holdfast.sources.contract import Source
from holdfast.spark.bind import BoundStage


class Pins:
    """Layers that a running job of this process reads, by their row in the ledger."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._lock = Lock()

    @contextmanager
    def hold(self, ids: Sequence[int]) -> Iterator[None]:
        """Keep the sweeper off these layers."""
        with self._lock:
            self._counts.update(ids)
        try:
            yield
        finally:
            with self._lock:
                self._counts.subtract(ids)

    def held(self) -> set[int]:
        """What must not be condemned now."""
        with self._lock:
            return {i for i, count in self._counts.items() if count > 0}


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
    generation: int
    tasks: int
    progress: Progress
    direct: bool = True  # whether tasks may read files themselves
    alarm: Alarm = field(default_factory=Alarm)
    pins: Pins = field(default_factory=Pins)
    stopping: Event = field(default_factory=Event)
    repairing: Lock = field(default_factory=Lock)
    draining: Event = field(default_factory=Event)  # the input is taken to have ended
    heard: dict[str, float] = field(default_factory=dict)  # by source, when it last had something new
    tags: set[str] = field(default_factory=set)

    @property
    def durable(self) -> bool:
        """Whether files are carried to the disk: a flow that survives only its process does without."""
        return self.plan.survives != "process"

    def silent_us(self, source: str) -> int:
        """How long a source has had nothing new for this process."""
        return int((time.monotonic() - self.heard.get(source, self.progress.started)) * 1e6)

    @contextmanager
    def tagged(self, stage: str, what: str) -> Iterator[str]:
        """A tag for the Spark jobs of one attempt, by which a stop interrupts them."""
        tag = f"holdfast-{self.plan.name}-{stage}-{what}-{self.generation}"
        self.tags.add(tag)
        try:
            yield tag
        finally:
            self.tags.discard(tag)

    def interrupt_jobs(self) -> None:
        """End the Spark jobs that this worker has under way."""
        for tag in list(self.tags):
            self.spark.interruptTag(tag)
