"""What the processes of a simulation of snapshots ask of a ledger, whether it is a model or the product's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.ledger.epochs import StageRow
from holdfast.protocols.snapshots import Pace, Part
from sim.snapshot_schedules import Schedule
from sim.snapshot_target import Target

FLOW = "sim"

Reads = Mapping[str, tuple[int, int]]


class Died(BaseException):
    """A process has come to its end, in the middle of what it was doing."""


@dataclass
class Worker:
    """A process that runs the stages of a group."""

    name: str
    group: str
    stages: tuple[str, ...]
    generation: int
    lives: bool = True
    busy: set[str] = field(default_factory=set)  # its loops that are inside a step; the others go on
    recovered: bool = False
    begun: dict[int, int] = field(default_factory=dict)  # by snapshot, when it first saw it
    begun_us: int = 0
    ended_us: int = 0
    opened: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # by sink, for which generation and branch
    engine: object = None  # what a store keeps for it


@dataclass(frozen=True)
class Offer:
    """What a stage may take for its next epoch, in one view."""

    row: StageRow
    planned: Reads | None
    positions: Mapping[str, int]
    files: Mapping[
        str, Sequence[str]
    ]  # by channel, of the epochs from the position on, as far as they may be read
    sources: Mapping[str, int]  # by source, the items from the position on


@dataclass(frozen=True)
class Standings:
    """Where all stages stand."""

    heads: Mapping[str, int]
    positions: Mapping[str, Mapping[str, int]]


class Surroundings(Protocol):
    """What a store is told and tells."""

    schedule: Schedule

    def now_us(self) -> int:
        """The time."""
        ...

    def mode(self) -> str:
        """How snapshots are taken now."""
        ...

    def pace(self) -> Pace:
        """How often."""
        ...

    def reach(self, point: str) -> None:
        """The process at work has come to a point, at which it may end or be held up."""
        ...

    def carried(self, paths: Sequence[str]) -> None:
        """Files are where they survive."""
        ...

    def captured(self, number: int, mode: str, parts: Mapping[str, Part]) -> None:
        """A snapshot was committed just now."""
        ...

    def returned(self, number: int, mode: str) -> None:
        """The region has returned to a snapshot just now."""
        ...


class Store(Protocol):
    """The ledger, and what the runtime does with it in one step."""

    def assign(self, group: str, worker: str) -> int:
        """Replace whoever ran a group; the new generation."""
        ...

    def leave(self, worker: Worker) -> None:
        """Stop cleanly."""
        ...

    def generation_of(self, worker: Worker) -> int | None:
        """That of a worker that still has its place."""
        ...

    def add_items(self, source: str, known: int, number: int) -> None:
        """A source has found more."""
        ...

    def offer(self, worker: Worker, stage: str) -> Offer | None:
        """What a stage can do next, None if it may not plan."""
        ...

    def pass_over(self, row: StageRow, ranges: Reads) -> None:
        """Leave epochs without rows behind."""
        ...

    def record_plan(self, row: StageRow, reads: Reads) -> tuple[StageRow, str]:
        """Plan an epoch, with its first attempt."""
        ...

    def open_attempt(self, row: StageRow) -> str:
        """Try a planned epoch again."""
        ...

    def commit(self, row: StageRow, attempt: str, reads: Reads, path: str, rows: int) -> None:
        """Publish an epoch."""
        ...

    def snapshot_step(self, worker: Worker) -> None:
        """Take the parts that are due, and coordinate if it is this worker's turn."""
        ...

    def ask(self) -> None:
        """Want a snapshot."""
        ...

    def ship(self, worker: Worker, stage: str) -> None:
        """Carry the files of a stage."""
        ...

    def trimmable(self, worker: Worker, stage: str) -> int:
        """Below which epoch nobody can ask for a stage's output any more."""
        ...

    def sink_step(self, worker: Worker, sink: str, target: Target) -> None:
        """Publish what may leave."""
        ...

    def recover(self, worker: Worker) -> None:
        """Return the region, if a stage of the worker has lost its worker."""
        ...

    def standings(self) -> Standings:
        """Where all stand."""
        ...

    def is_quiet(self) -> bool:
        """Whether no snapshot is wanted or under way, and the last covers all that was committed and has left."""
        ...


Reach = Callable[[str], None]
