"""The ledger as the simulation uses it: one method a transaction, so that a process can die between any two.

There are two of these: `ModelLedger`, in memory and fast enough for thousands of schedules, and `RealLedger`, which
calls the product's own code on SQLite. A test runs the same seeds on both and wants the same steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.ledger.epochs import StageRow
from holdfast.ledger.groups import GroupRow, WorkerRow

FLOW = "simulated"
SOURCE = "in"


class Chain:
    """A flow of stages in a row, cut into groups. The last stage feeds the sink.

    With `gaps`, some items of the source and some epochs hold no rows, other ones for every number.
    """

    def __init__(self, groups: Mapping[str, tuple[str, ...]], gaps: int = 0) -> None:
        self.groups = groups
        self._gaps = gaps
        self.stages = tuple(stage for stages in groups.values() for stage in stages)
        self.last = self.stages[-1]
        self.before = dict(zip(self.stages[1:], self.stages, strict=False))
        self.group_of = {stage: name for name, stages in groups.items() for stage in stages}
        self.input_of = {
            stage: f"channel:{self.before[stage]}.out" if stage in self.before else f"source:{SOURCE}"
            for stage in self.stages
        }
        self.cursor_of = {stage: (f"stage:{stage}", self.input_of[stage]) for stage in self.stages}
        self.sink_input = f"channel:{self.last}.out"
        self.sink_cursor = "sink:out", self.sink_input

    @property
    def has_gaps(self) -> bool:
        return self._gaps > 0

    def rows(self, producer: str, position: int) -> int:
        """The rows of an item of the source, or of an epoch of a stage."""
        drawn = zlib.crc32(f"{self._gaps} {producer} {position // 3} {position % 2}".encode())
        return int(not self._gaps or drawn % 2 == 0)

    def empty(self, stage: str, start: int, stop: int) -> int:
        """How many positions of a stage's input hold no rows, before the first that does."""
        producer = self.before.get(stage, SOURCE)
        filled = (at for at in range(start, stop) if self.rows(producer, at))
        return next(filled, stop) - start


@dataclass(frozen=True)
class Manifest:
    """An epoch that was committed, and what it read."""

    epoch: int
    attempt: str
    start: int
    stop: int


@dataclass(frozen=True)
class Offer:
    """What a stage has to do: an open plan to follow, or positions of its input to plan."""

    row: StageRow
    plan: tuple[int, int] | None
    start: int
    available: int
    empty: int  # of these, at the front, that hold no rows


@dataclass(frozen=True)
class StageFact:
    """Where a stage stands, as the checker looks at it."""

    head: int
    generation: int
    orphaned: bool


@dataclass(frozen=True)
class View:
    """All that the checker compares, in one consistent view."""

    generation: int
    groups: Mapping[str, GroupRow]
    stages: Mapping[str, StageFact]
    manifests: Mapping[str, Sequence[Manifest]]
    cursors: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Backlog:
    """What is left to do in the whole flow: by stage what it has not read, and whether it has an open plan."""

    items: int
    unread: Mapping[str, int]
    planned: Collection[str]
    unpublished: int


class Store(Protocol):
    """The transactions of the protocols. Refusals are FencedError, as in the product."""

    def view(self) -> View: ...

    # What a supervisor writes and reads.
    def supervise(self) -> int: ...
    def lay_out(self, supervisor: int, groups: Mapping[str, Sequence[str]]) -> None: ...
    def assign(
        self, supervisor: int, group: str, primary: str, members: Collection[str], reason: str
    ) -> int: ...
    def admit(self, supervisor: int, group: str, worker: str) -> None: ...
    def expel(self, supervisor: int, group: str, worker: str, reason: str) -> None: ...
    def add_worker(self, supervisor: int, worker: str, group: str) -> None: ...
    def forget_worker(self, supervisor: int, worker: str, why: str) -> None: ...
    def groups_and_workers(self) -> tuple[dict[str, GroupRow], list[WorkerRow]]: ...

    # What a worker writes and reads about itself and its group.
    def update_worker(self, worker: str, status: str, pid: int) -> None: ...
    def standing(self, group: str, worker: str) -> tuple[GroupRow, bool]: ...
    def register(self, generation: int, stage: str) -> None: ...
    def orphans(self) -> set[str]: ...
    def recovered(self, generation: int, stage: str) -> None: ...
    def leave(self, generation: int, worker: str, status: str) -> None: ...
    def refuse_deposed(self, generation: int) -> None: ...

    # What a worker writes and reads about epochs.
    def add_items(self, generation: int, known: int, offered: int) -> None: ...
    def offer(self, stage: str, generation: int) -> Offer | None: ...
    def own_place(self, stage: str) -> tuple[GroupRow, StageRow]: ...
    def pass_over(self, row: StageRow, reads: tuple[int, int]) -> None: ...
    def record_plan(self, row: StageRow, reads: tuple[int, int]) -> tuple[StageRow, str]: ...
    def open_attempt(self, row: StageRow) -> str: ...
    def close_attempt(self, row: StageRow, attempt: str) -> None: ...
    def commit(self, row: StageRow, attempt: str, reads: tuple[int, int]) -> None: ...
    def sink_place(self) -> tuple[int, int]: ...
    def move_sink(self, generation: int, epoch: int) -> None: ...
    def backlog(self) -> Backlog: ...
