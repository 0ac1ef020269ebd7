"""Named places at which a test may end the process, free when off.

`HOLDFAST_CRASH=commit.before:3` ends the process with SIGKILL the third time it reaches `commit.before`;
`HOLDFAST_CRASH=commit.before:3:stop` stops it there with SIGSTOP, so that it can come back as a zombie, and
`...:raise` and `...:full` let an error come out of the place instead, as if nobody answered or the disk were full.
`HOLDFAST_CRASH_MARK=FILE` makes it happen once in all processes that share the file: whoever creates
the file dies, the others go on. `HOLDFAST_CRASH_WATCH=FILE` has every place that is reached written down there.
A point inside a task ends the Python worker that runs the task. Several crashes are told apart by commas, and each happens once.

The list below is the whole of it: a name that is not in it is a mistake in the code or in the test.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from threading import Lock

from holdfast.core.errors import LedgerError

POINTS = (
    "discover.after",
    "plan.before",
    "table.after_copy",
    "plan.after",
    "pass.before",
    "pass.after",
    "task.before_layer",
    "task.after_layer",
    "task.after_segment",
    "commit.before",
    "commit.after",
    "sink.before_stage",
    "sink.after_stage",
    "sink.after_publish",
    "sink.after_record",
    "ship.before",
    "ship.mid",
    "ship.after",
    "merge.before",
    "merge.mid",
    "merge.before_commit",
    "merge.after_commit",
    "snapshot.after_begin",
    "snapshot.before_part",
    "snapshot.after_part",
    "snapshot.before_commit",
    "snapshot.after_commit",
    "snapshot.before_done",
    "sweep.after_condemn",
    "sweep.mid",
    "repair.before_commit",
    "lease.before_renew",
    "failover.after_fence",
    "recover.before",
    "recover.before_commit",
)

ACTIONS = ("kill", "stop", "raise", "full")


@dataclass(frozen=True)
class Orders:
    """What is to happen at the points; tasks are given those of their driver."""

    crash: str = ""  # POINT[:NTH[:ACTION]]; by commas if there are several
    mark: str = ""
    watch: str = ""
    after: str = ""  # a file: what is reached before it is there does not count

    @property
    def crashes(self) -> list[str]:
        """Each for itself."""
        return self.crash.split(",") if self.crash else []

    @property
    def marks(self) -> list[str]:
        """The file of each, if they have any."""
        return [
            self.mark and (f"{self.mark}.{number}" if number else self.mark)
            for number in range(len(self.crashes))
        ]


NO_ORDERS = Orders()


class _Crash:
    """One crash that was ordered, and how often its point is still to be reached."""

    def __init__(self, text: str, mark: str) -> None:
        self.point, nth, action, *_ = *text.split(":"), "", ""
        self._mark = mark
        self._left = int(nth or 1)
        self._action = action or "kill"
        self._lock = Lock()
        if self.point not in POINTS:
            raise ValueError(
                f"HOLDFAST_CRASH names no crash point: {self.point!r} (one of {', '.join(POINTS)})"
            )
        if self._action not in ACTIONS:
            raise ValueError(f"HOLDFAST_CRASH can {', '.join(ACTIONS)}, not {self._action!r}")

    def come_to(self) -> None:
        if self._is_due():
            self._act()

    def _is_due(self) -> bool:
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return False
        if not self._mark:
            return True
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _act(self) -> None:
        if self._action == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._action == "raise":
            raise LedgerError(f"no answer at {self.point}, as was asked for", operation="crash point")
        os.kill(os.getpid(), signal.SIGSTOP if self._action == "stop" else signal.SIGKILL)


class _Armed:
    """Orders in force."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._crashes = [_Crash(text, mark) for text, mark in zip(orders.crashes, orders.marks, strict=True)]

    def come_to(self, point: str) -> None:
        if self.orders.watch:
            _written(self.orders.watch, point)
        if self.orders.after and not os.path.exists(self.orders.after):
            return
        for crash in self._crashes:
            if crash.point == point:
                crash.come_to()


_armed: _Armed | None = None


def obey(orders: Orders) -> None:
    """Have these orders from here on; orders that are in force already go on."""
    global _armed
    if orders != standing():
        _armed = _Armed(orders) if orders != NO_ORDERS else None


def standing() -> Orders:
    """The orders in force."""
    return _armed.orders if _armed else NO_ORDERS


def reach(point: str) -> None:
    """Say that the process has come to `point`; the process ends here if a test asked for it."""
    if _armed is not None:
        _armed.come_to(point)


def _written(path: str, point: str) -> None:
    """One write a line: processes that share the file do not tear each other's."""
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(fd, f"{point}\n".encode())
    finally:
        os.close(fd)


obey(
    Orders(
        os.environ.get("HOLDFAST_CRASH", ""),
        os.environ.get("HOLDFAST_CRASH_MARK", ""),
        os.environ.get("HOLDFAST_CRASH_WATCH", ""),
    )
)
