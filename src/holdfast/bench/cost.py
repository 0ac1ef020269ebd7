"""What a process and all below it have cost so far: CPU seconds and bytes written, as the kernel counts them.

A process that has ended counts with whoever waited for it, which is within the tree for all that a session or a
supervisor starts. Written bytes are `write_bytes`: pages of files that were dirtied, whether or not the disk has them
yet; what goes through pipes and sockets is not among them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Cost:
    """CPU seconds and bytes, added up over processes."""

    cpu_s: float
    written_bytes: int

    def since(self, before: Cost) -> Cost:
        """What came on top of an earlier cost."""
        return Cost(self.cpu_s - before.cpu_s, self.written_bytes - before.written_bytes)


def spent(root: int) -> Cost:
    """What a process and its descendants have cost, those that ended included."""
    costs = [_cost(pid) for pid in tree(root)]
    return Cost(sum(cost.cpu_s for cost in costs), sum(cost.written_bytes for cost in costs))


def tree(root: int) -> list[int]:
    """A process and its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cost(pid: int) -> Cost:
    fields = _stat(pid)
    # User and system time of the process, and of the children that it waited for.
    ticks = sum(int(field) for field in fields[11:15])
    return Cost(ticks / _TICKS, _written(pid))


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name, which may hold anything; none if it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _written(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
