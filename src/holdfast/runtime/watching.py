"""What a supervisor sees of its workers: who lives, whose lease has run out, who is stuck; and why it thinks so.

The judgements are pure functions (protocols/detector.py, protocols/stuck.py); here is what they are fed with. The threads of
a process are read only at a raise of its lease, and once one is overdue; its JVM's, once a plan has been open for long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.ledger.groups import WorkerRow
from holdfast.ledger.process import Process
from holdfast.protocols import detector, stuck
from holdfast.protocols.detector import FINE, Belief, Evidence, Terms, Verdict
from holdfast.protocols.stuck import OpenPlan, Standstill
from holdfast.protocols.supervision import STARTING
from holdfast.runtime import evidence
from holdfast.runtime.lease import lease_path, read_lease
from holdfast.runtime.starting import Started


@dataclass(frozen=True)
class Look:
    """What one look at a worker has shown."""

    lives: bool
    why_silent: str = ""  # empty: it raises its lease
    why_stuck: str = ""


@dataclass
class Watch:
    """What the supervisor knows of a worker beside the ledger."""

    child: Started | None = None  # if this supervisor has had it started
    pidfd: int | None = None
    belief: Belief | None = None
    starting: bool = True  # it has not been seen ready yet
    plans: dict[str, Standstill] = field(default_factory=dict)
    since_ms: int = field(default_factory=lambda: _now_ms())

    def has_ended(self) -> bool:
        """Whether it is a child whose end was seen."""
        return self.child is not None and self.child.returncode is not None


class Watching:
    """The watches over all workers of a flow."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.watches: dict[str, Watch] = {}

    def begin(self, worker: str, child: Started) -> None:
        """Watch a worker that was just started."""
        self.watches[worker] = Watch(child, os.pidfd_open(child.pid))

    def forget(self, worker: str) -> Watch:
        """Watch it no longer; what was known of it."""
        watch = self.watches.pop(worker, Watch())
        if watch.pidfd is not None:
            os.close(watch.pidfd)
        lease_path(self._root, worker).unlink(missing_ok=True)
        return watch

    def pidfds(self) -> list[int]:
        """What becomes readable when a worker ends."""
        found = [watch for watch in self.watches.values() if not watch.has_ended()]
        return [watch.pidfd for watch in found if watch.pidfd is not None]

    def look(self, row: WorkerRow, terms: Terms) -> Look:
        """Look at a worker's process and at its lease."""
        watch = self.watches.setdefault(row.worker, Watch())
        if watch.starting and row.status != STARTING:
            watch.starting, watch.belief = False, detector.once_ready(watch.belief)
        counter = read_lease(self._root, row.worker)
        process = process_of(row, watch)
        seen = Evidence(counter)
        if detector.wants_threads(watch.belief, counter, terms) and process and process.is_here:
            seen = evidence.of_processes(counter, [process.pid])
        watch.belief, verdict = detector.judge(watch.belief, seen, _now_ms(), terms)
        return Look(self.lives(row), verdict.why)

    def look_at_plans(
        self,
        row: WorkerRow,
        plans: Sequence[OpenPlan],
        terms: Terms,
        epochs_ms: Callable[[str], Sequence[float]],
    ) -> Verdict:
        """Whether a worker is stuck with one of its open plans."""
        watch = self.watches.setdefault(row.worker, Watch())
        watch.plans = {plan.stage: stuck.look(watch.plans.get(plan.stage), plan, _now_ms()) for plan in plans}
        due = [still for still in watch.plans.values() if stuck.wants_threads(still, _now_ms())]
        process = process_of(row, watch)
        if due and process is not None and process.is_here:
            # Its own threads too: a driver that computes is at work, and one that waits for a lock is not.
            seen = evidence.of_processes(None, evidence.kin(process, row.worker))
            for still in due:
                watch.plans[still.plan.stage] = stuck.weigh(still, seen, _now_ms())
        near = [still for still in watch.plans.values() if stuck.is_near(still)]
        found = [stuck.verdict(still, epochs_ms(still.plan.stage), terms) for still in near]
        return next((verdict for verdict in found if verdict), FINE)

    def is_new(self, row: WorkerRow, within_ms: int) -> bool:
        """Whether a worker lives that has not been watched for longer than this."""
        watch = self.watches.setdefault(row.worker, Watch())
        return _now_ms() - watch.since_ms < within_ms and self.lives(row)

    def lives(self, row: WorkerRow) -> bool:
        """Whether the process of a worker runs."""
        watch = self.watches.setdefault(row.worker, Watch())
        if watch.child is not None:
            return watch.child.poll() is None
        if row.process is None:
            return False
        if watch.pidfd is None and row.process.is_here and row.process.lives():
            watch.pidfd = os.pidfd_open(row.process.pid)
        return row.process.lives()


def process_of(row: WorkerRow, watch: Watch) -> Process | None:
    """The process of a worker, whether it has said so itself yet or not."""
    return row.process or (Process.here(watch.child.pid) if watch.child is not None else None)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
