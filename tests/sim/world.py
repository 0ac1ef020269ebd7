"""Virtual time, processes that can be paused or killed between any two steps, and their leases.

A process is a few generators that yield how long they wait and at which point they stand. One heap orders them all;
ties go in the order of arrival, and all chance comes from one seeded generator: a seed is a schedule. A pause holds
all tasks of a process, which then go on with what they had in hand; a crash lets them go for ever.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.protocols import lock_wait
from holdfast.protocols.detector import Evidence, Thread
from holdfast.protocols.lock_wait import Holding
from sim import faults
from sim.checker import Checker, Violation
from sim.faults import Fault
from sim.store import Store

T = TypeVar("T")
Step = tuple[int, str]
Task = Generator[Step, None, None]
Call = Generator[Step, None, T]

WALL_START_MS = 1_700_000_000_000


@dataclass
class Process:
    """A process of the simulated host, and the lease that it raises."""

    name: str
    role: str
    pid: int
    lives: bool = True
    ended: str = ""  # crashed, failed, left, stopped, deposed or forgotten
    paused_until_ms: int = 0
    told_to: str = ""  # stop, or fail
    counter: int = 0  # of its lease, as a reader finds it
    raised_ms: int = 0
    deaf_until_ms: int = 0  # what it raises does not arrive
    unreadable_until_ms: int = 0
    starved_from_ms: int = 0
    starved_until_ms: int = 0  # it could run and gets no CPU
    burning_until_ms: int = 0  # one thread holds the interpreter, and burns CPU
    waited_ms: int = 0  # for a CPU, up to the last time it got one
    ran_ms: int = 0
    told_ms: int = 0  # up to when its CPU time is told


@dataclass
class World:
    """Everything outside the processes."""

    rng: random.Random
    store: Store
    checker: Checker
    faults: list[Fault]
    trace: list[str] | None = None
    now_ms: int = 0
    wall_step_ms: int = 0
    outage_until_ms: int = 0
    processes: dict[str, Process] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    losing_reply: set[str] = field(default_factory=set)  # processes whose next write is not answered
    second_supervisor: bool = False  # somebody is about to start another
    inside: Process | None = None  # who holds the ledger's write lock
    inside_since_ms: int = 0
    commits: int = 0
    _heap: list[tuple[int, int, Process, Task, str]] = field(default_factory=list)
    _pushed: int = 0

    def wall_ms(self) -> int:
        """The wall clock, which may be stepped at any time; no decision may read it."""
        return WALL_START_MS + self.now_ms + self.wall_step_ms

    def begin(self, name: str, role: str) -> Process:
        """A new process, without tasks yet."""
        process = Process(name, role, len(self.processes) + 1, raised_ms=self.now_ms)
        self.processes[name] = process
        return process

    def add_task(self, process: Process, task: Task) -> None:
        """Let a process do something more, from now on."""
        self._push(self.now_ms, process, task, "")

    def end(self, process: Process, how: str) -> None:
        """The process is gone at once, with whatever it was doing."""
        if process.lives:
            process.lives, process.ended = False, how
            self.note(process, f"ends: {how}")

    def lives(self, name: str) -> bool:
        """Whether there is such a process."""
        return name in self.processes and self.processes[name].lives

    def run(self, until_ms: int) -> None:
        """Go on in time."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, process, task, point = heapq.heappop(self._heap)
            self._step(process, task, point)
        self.now_ms = until_ms

    def note(self, process: Process, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now_ms:6d} ms  {process.name:14s} {what}")

    # Calls from processes to the outside.

    def read(self, look: Callable[[], T]) -> Call[T]:
        """Read the ledger; while it is unavailable this waits, as SQLite does."""
        yield self.rng.randint(0, 3), ""
        while self.now_ms < self.outage_until_ms:
            yield self.outage_until_ms - self.now_ms, ""
        return look()

    def write(self, process: Process, step: str, act: Callable[[], T]) -> Call[T]:
        """Write to the ledger; the reply may be lost after the transaction has taken place."""
        yield self.rng.randint(0, 3), f"{step}.before"
        while self.now_ms < self.outage_until_ms:
            yield self.outage_until_ms - self.now_ms, ""
        yield from self._lock(process)
        yield 0, f"{step}.inside"
        self.inside = None
        try:
            result = act()
        except FencedError:
            self.note(process, f"{step}: refused")
            self.counts[f"{step} refused"] += 1
            raise
        except LedgerError as error:
            raise Violation(f"{process.name} could not {step}: {error}") from error
        self.note(process, f"{step}: {result}")
        self.counts[step] += 1
        self.commits += 1
        self.checker.after(process.name, self.store.view())
        if process.name in self.losing_reply:
            self.losing_reply.remove(process.name)
            self.note(process, f"{step}: the reply is lost")
            raise LedgerError(f"no reply to {step}", operation=step, heals=True)
        yield self.rng.randint(0, 3), f"{step}.after"
        return result

    def _lock(self, process: Process) -> Call[None]:
        """Wait for the write lock as the product does: whoever stands still with it is ended, within a bound."""
        seen: Holding | None = None
        begun_ms = looked_ms = self.now_ms
        while self.inside is not None and self.inside.lives:
            yield 1 if self.now_ms - begun_ms < 10 else 50, ""
            if self.now_ms - looked_ms < limits.LEDGER_LOOK_MS or self.inside is None:
                continue
            holder = None if self.inside is process else self.inside.pid
            seen = lock_wait.look(seen, holder, self.commits, self.now_ms - looked_ms)
            looked_ms = self.now_ms
            if seen is not None and seen.is_stuck():
                self._free(self.inside)
            elif self.now_ms - begun_ms > limits.LEDGER_BUSY_MS_MAX:
                self.counts["ledger locked"] += 1
                raise LedgerError("the ledger is locked", operation="write", heals=True)
        self.inside, self.inside_since_ms = process, self.now_ms

    def _free(self, holder: Process) -> None:
        if not self.may_be_ended(holder):
            return
        held_ms = self.now_ms - self.inside_since_ms
        if held_ms < limits.LEDGER_HOLD_MS_MAX:
            raise Violation(f"{holder.name} was ended, but has held the lock for {held_ms} ms only")
        self.counts["lock freed"] += 1
        self.end(holder, "ended for its lock")

    def may_be_ended(self, holder: Process) -> bool:
        """What the flow has started, whatever its part."""
        return holder.role == "worker"

    def evidence_of(self, worker: str) -> Evidence:
        """What a judge finds: a lease is 0 before the first raise, and None if it cannot be read just now."""
        process = self.processes.get(worker)
        if process is None:
            return Evidence(0, {})
        counter = None if self.now_ms < process.unreadable_until_ms else process.counter
        self._account(process)
        starved = self.now_ms < process.starved_until_ms
        return Evidence(
            counter, {process.pid: Thread(process.ran_ms * 10**6, process.waited_ms * 10**6, starved)}
        )

    def _account(self, process: Process) -> None:
        """Bring a process's account up to now; a wait that lasts is added when it is over."""
        if self.now_ms < process.starved_until_ms:
            return
        if process.told_ms < process.starved_until_ms:
            process.waited_ms += process.starved_until_ms - process.starved_from_ms
        burns = self.now_ms < process.burning_until_ms
        process.ran_ms += (self.now_ms - process.told_ms) if burns else 1
        process.told_ms = self.now_ms

    def raise_lease(self, process: Process) -> None:
        """Raise a process's lease; a raise that is lost makes up for itself with the next."""
        if self.now_ms >= process.deaf_until_ms:
            process.counter += 1
            process.raised_ms = self.now_ms

    # Steps and faults.

    def _push(self, at_ms: int, process: Process, task: Task, point: str) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_ms, self._pushed, process, task, point))

    def _step(self, process: Process, task: Task, point: str) -> None:
        if process.lives and point and self.faults and self.faults[0].at_ms <= self.now_ms:
            self._strike(process, point)
        if not process.lives:
            return
        if process.paused_until_ms > self.now_ms:
            self._push(process.paused_until_ms, process, task, point)
            return
        try:
            wait_ms, point = next(task)
        except StopIteration:
            return
        self._push(self.now_ms + wait_ms, process, task, point)

    def _strike(self, process: Process, point: str) -> None:
        for fault in self.faults:
            if fault.at_ms > self.now_ms:
                return
            if fault.strikes(process.role, point):
                self.faults.remove(fault)
                self._befall(process, fault, point)
                return

    def _befall(self, process: Process, fault: Fault, point: str) -> None:
        self.note(process, f"FAULT {fault.kind} at {point}, {fault.length_ms} ms")
        self.counts[f"{fault.role} {fault.kind}"] += 1
        until_ms = self.now_ms + fault.length_ms
        match fault.kind:
            case "crash":
                self.end(process, "crashed")
            case "pause" | faults.STANDS_STILL:
                process.paused_until_ms = max(process.paused_until_ms, until_ms)
            case "starved":
                process.starved_from_ms, process.starved_until_ms = self.now_ms, until_ms
                process.paused_until_ms = until_ms
            case "burning":
                process.burning_until_ms = process.paused_until_ms = until_ms
            case "deaf":
                process.deaf_until_ms = until_ms
            case "unreadable":
                process.unreadable_until_ms = until_ms
            case "reply lost":
                self.losing_reply.add(process.name)
            case "second":
                process.paused_until_ms = until_ms
                self.second_supervisor = True
            case _:
                process.told_to = fault.kind
