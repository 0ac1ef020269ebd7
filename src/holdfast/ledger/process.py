"""Processes as the ledger names them."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.core import limits


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid by its start time."""

    host: str
    pid: int
    started: str

    @classmethod
    def myself(cls) -> Process:
        """This process."""
        return cls.here(os.getpid())

    @classmethod
    def here(cls, pid: int) -> Process:
        """A process of this host."""
        return cls(socket.gethostname(), pid, _start_time(pid) or "")

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, on this host."""
        return self.host == socket.gethostname()

    def lives(self) -> bool:
        """Whether the process still runs; one on another host counts as running."""
        return not self.is_here or _start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is on this host, alive, and not this one."""
        if self.is_here and self.pid != os.getpid() and self.lives():
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + limits.PROCESS_END_MS_MAX / 1000
        while self.is_here and self.lives() and time.monotonic() < deadline:
            time.sleep(0.01)


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a process, None if there is none (or only its remains)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
