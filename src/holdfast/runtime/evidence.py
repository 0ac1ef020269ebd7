"""What the kernel of this host tells of processes: what their threads ran and waited, and who belongs to whom."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.ledger.process import Process
from holdfast.protocols.detector import Evidence, Thread

# In the environment of a worker, and so of its JVM and of Spark's Python workers: whose they are.
WORKER_VARIABLE = "HOLDFAST_WORKER"

_NICE_MAX = 19


def of_processes(counter: int | None, pids: Iterable[int]) -> Evidence:
    """Evidence from the threads of some processes; from the machine's own account where the kernel keeps none of them."""
    found: dict[int, Thread] = {}
    for pid in pids:
        threads = _threads(pid)
        if threads is None:
            return Evidence(counter, None, _stalled_ms())
        found |= threads
    return Evidence(counter, found)


def kin(process: Process, worker: str) -> list[int]:
    """The processes of a worker's session that carry its name: the worker, its JVM, Python workers; who is left of them."""
    if not process.is_here:
        return []
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if _session(pid) == process.pid and _is_of(pid, worker)]


def end_kin(process: Process, worker: str) -> None:
    """Kill a worker and all that it has started. A process whose number was given to another is left alone."""
    for pid in kin(process, worker):
        if pid == os.getpid():
            continue
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _is_of(pid, worker):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            os.close(fd)


def defer_kin(process: Process, worker: str) -> None:
    """Let whatever is left of a worker come after everybody else: a JVM tidies up when it ends, and a successor is at work."""
    for pid in kin(process, worker):
        for tid in _tids(pid):
            with suppress(OSError):  # it has ended, or is somebody else's
                os.setpriority(os.PRIO_PROCESS, tid, _NICE_MAX)


def _tids(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _threads(pid: int) -> dict[int, Thread] | None:
    """The threads of a process, none of one that has ended; None where the kernel does not account for them."""
    found: dict[int, Thread] = {}
    for tid in _tids(pid):
        try:
            stat = _read(f"/proc/{pid}/task/{tid}/stat")
            sched = _read(f"/proc/{pid}/task/{tid}/schedstat").split()
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{tid}"):
                return None
            continue
        except PermissionError:
            return None
        runnable = stat.rpartition(b")")[2].split()[0] == b"R"
        found[tid] = Thread(int(sched[0]), int(sched[1]), runnable)
    # A kernel that is not told to account says 0 of everybody.
    return found if not found or any(thread.ran_ns for thread in found.values()) else None


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _stalled_ms() -> float | None:
    """How long some task of the machine has waited for a CPU since it was started, None if nobody counts it."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return None
    return int(some.rpartition("total=")[2]) / 1000


def _session(pid: int) -> int | None:
    try:
        return int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[3])
    except OSError:
        return None


def _is_of(pid: int, worker: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{WORKER_VARIABLE}={worker}".encode() in environ.split(b"\0")
