"""Forks the workers of a supervised run, for whichever supervisor asks.

Workers outlive their supervisor, so it cannot be the one who forks them. A nursery has no threads and everything imported: a
worker that it forks is there at once, where one that is started from the command line takes seconds to import Spark. All of
them end with the nursery, and that with the process that made it.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.ledger.process import Process
from holdfast.runtime.starting import log_of
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.verify.actor import Actor

# What is told of one worker fits many times over.
_MESSAGE_BYTES_MAX = 1 << 20

# Lives as a worker: which one of its group it is, in the order in which they were started, and what it is told.
Life = Callable[[int, WorkerSpec], object]


class Nursery:
    """A process that forks workers."""

    def __init__(self, live: Life, log: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours = self._socket

        def act() -> None:
            ours.close()
            _fork_workers(theirs, live)

        self._actor = Actor(act, log, bounded=False)
        theirs.close()

    def start(self, flow: str, spec: WorkerSpec, environment: Mapping[str, str]) -> Ward:
        """Have a worker forked. Called in the process of a supervisor, which is forked from the one that made the nursery."""
        self._socket.send(spec.to_json().encode())
        while True:
            worker, pid = json.loads(self._socket.recv(_MESSAGE_BYTES_MAX))
            # An answer to a supervisor that was killed while it waited for it is nobody's.
            if worker == spec.worker:
                return Ward(pid)

    def close(self) -> None:
        """End it, and every worker that is left."""
        self._socket.close()
        self._actor.end()


class Ward:
    """A worker that is a child of the nursery: how it ended, only the nursery could tell."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._process = Process.here(pid)

    def poll(self) -> int | None:
        """Something once it has ended."""
        if self.returncode is None and not self._process.lives():
            self.returncode = 1
        return self.returncode


def _fork_workers(asked: socket.socket, live: Life) -> None:
    started = Counter[str]()
    while text := asked.recv(_MESSAGE_BYTES_MAX):
        spec = WorkerSpec.from_json(text.decode())
        log = log_of(Path(spec.work_dir), spec.worker)
        log.parent.mkdir(exist_ok=True)
        worker = Actor(_life(live, started[spec.group], spec, asked), log, bounded=False)
        asked.send(json.dumps([spec.worker, worker.pid]).encode())
        started[spec.group] += 1


def _life(live: Life, number: int, spec: WorkerSpec, asked: socket.socket) -> Callable[[], object]:
    def act() -> object:
        asked.close()
        # As a worker that is started from the command line: what is done to its session is done to nobody else.
        os.setsid()
        return live(number, spec)

    return act
