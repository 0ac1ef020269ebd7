"""Processes that are no longer on the list of workers: they end by themselves, or are ended when they have had their time.

A worker is a session of its own: its JVM and Spark's Python workers belong to it, and go with it. The ledger remembers every
process that was started until nothing is left of it, so that the next supervisor, and a stop, know of it too.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from holdfast.core import limits
from holdfast.ledger import groups
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.process import Process
from holdfast.runtime import evidence
from holdfast.runtime.starting import Started


@dataclass
class Leftovers:
    """What is to end, and when it is made to."""

    ledger: Ledger
    _due: dict[str, tuple[Process, float]] = field(default_factory=dict)
    _children: dict[str, Started] = field(default_factory=dict)
    _look_at: float = 0.0

    def leave(self, worker: str, process: Process | None, child: Started | None = None) -> None:
        """A worker was fenced off or struck off: from here on its time runs."""
        if child is not None:
            self._children[worker] = child
        if process is not None and process.is_here and worker not in self._due:
            self._due[worker] = process, time.monotonic() + limits.FENCED_MS_MAX / 1000
            if not process.lives():
                # Nobody else is put off: whoever holds the ledger's lock has to come to run.
                evidence.defer_kin(process, worker)

    def why(self, worker: str) -> str:
        """Why nothing is to be expected of a worker that is on its way out; empty of any other."""
        return "it was fenced off" if worker in self._due else ""

    def step(self) -> None:
        """End who has had its time, and let go of who has ended."""
        now = time.monotonic()
        if not self._due or now < self._look_at:
            return
        self._look_at = now + limits.POLL_MS / 1000
        self._reap()
        ended = []
        for worker, (process, until) in list(self._due.items()):
            if now >= until:
                evidence.end_kin(process, worker)
            if not process.lives() and not evidence.kin(process, worker):
                ended.append(worker)
        for worker in ended:
            del self._due[worker]
        if ended:
            groups.processes_ended(self.ledger, ended)

    def end_all(self, known: dict[str, Process]) -> None:
        """A stop: end whatever is left of all processes that were ever started."""
        with self.ledger.read() as tx:
            noted = {**known, **groups.noted_processes(tx)}
        for process in noted.values():
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + limits.STOP_MS_MAX / 1000
        while time.monotonic() < deadline and any(p.is_here and p.lives() for p in noted.values()):
            self._reap()
            time.sleep(limits.WATCH_MS / 1000)
        # A JVM that has lost its driver ends by itself, and tidies up before.
        deadline = time.monotonic() + limits.PROCESS_END_MS_MAX / 1000
        while time.monotonic() < deadline and any(evidence.kin(p, worker) for worker, p in noted.items()):
            time.sleep(limits.WATCH_MS / 1000)
        for worker, process in noted.items():
            evidence.end_kin(process, worker)
        for process in noted.values():
            process.end()
        self._reap()
        groups.processes_ended(self.ledger, [w for w, process in noted.items() if process.is_here])

    def _reap(self) -> None:
        self._children = {worker: child for worker, child in self._children.items() if child.poll() is None}
