"""Workers that only get ready do so at low priority: whoever has work to do comes first, and a start adds little to a load.

Nobody may take back a nice value without a privilege. So there are three ways, and the first that can be taken back is
taken: the nice value, for those who may; the nice value of the session's scheduling group, which anybody may change back,
where the kernel groups processes by session; and else the batch policy, by which a process at least does not interrupt
others when it wakes up.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

# A third of the share of others: a start on a machine that is full takes longer, and still comes to its end.
NICE = 5

_AUTOGROUP = Path("/proc/self/autogroup")
_restore: list[Callable[[], None]] = []


def lower() -> str:
    """Let this process, and what it starts from here on, come after others; how that was done."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if _may_be_at(before):
        _renice(min(19, before + NICE))
        _restore.append(lambda: _renice(before))
        return "nice"
    if _groups_sessions():
        _regroup(NICE)
        _restore.append(lambda: _regroup(0))
        return "group"
    _each_thread(lambda tid: os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0)))
    _restore.append(
        lambda: _each_thread(lambda tid: os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0)))
    )
    return "batch"


def restore() -> None:
    """Come back to where it was, with everything that was started meanwhile."""
    while _restore:
        _restore.pop()()


def _may_be_at(nice: int) -> bool:
    """Whether this process could come back to a nice value: it can see by trying, without having left it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or 20 - soft <= nice:
        return True
    # The capability to set any nice value is bit 23 of the effective set.
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1]
    return bool(int(effective, 16) >> 23 & 1)


def _groups_sessions() -> bool:
    """Whether this process is scheduled by session, and leads one: the group is then its own."""
    if os.getsid(0) != os.getpid() or not os.access(_AUTOGROUP, os.W_OK):
        return False
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    cpu = [
        path
        for _, names, path in (line.split(":", 2) for line in lines)
        if names in ("", "cpu", "cpu,cpuacct")
    ]
    return (
        all(path == "/" for path in cpu)
        and Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    )


def _regroup(nice: int) -> None:
    _AUTOGROUP.write_text(str(nice))


def _renice(nice: int) -> None:
    _each_thread(lambda tid: os.setpriority(os.PRIO_PROCESS, tid, nice))


def _each_thread(change: Callable[[int], None]) -> None:
    """Twice: a thread that begins meanwhile has the priority of the one that began it."""
    for tid in (*_threads(), *_threads()):
        try:
            change(tid)
        except OSError:
            continue  # it has ended, or is somebody else's


def _threads() -> Iterator[int]:
    """All threads of this session."""
    session = os.getsid(0)
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                yield from [int(task.name) for task in os.scandir(f"/proc/{entry.name}/task")]
        except OSError:
            continue
