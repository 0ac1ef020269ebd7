"""Named places at which a test may end the process, free when off.

`HOLDFAST_CRASH=commit.before:3` ends the process with SIGKILL the third time it reaches `commit.before`;
`HOLDFAST_CRASH=commit.before:3:stop` stops it there with SIGSTOP, so that it can come back as a zombie.
`HOLDFAST_CRASH_MARK=FILE` makes it happen once in all processes that share the file: whoever creates
the file dies, the others go on. A point inside a task ends the Python worker that runs the task.

The list below is the whole of it: a name that is not in it is a mistake in the code or in the test.
"""

from __future__ import annotations

import os
import signal
from threading import Lock

POINTS = (
    "discover.after",
    "plan.before",
    "plan.after",
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
    "sweep.after_condemn",
    "sweep.mid",
    "repair.before_commit",
    "lease.before_renew",
    "failover.after_fence",
    "recover.before",
    "recover.before_commit",
)

_spec = os.environ.get("HOLDFAST_CRASH", "")
_point, _nth, _how, *_ = *_spec.split(":"), "", ""
_left = int(_nth or 1)
_signal = signal.SIGSTOP if _how == "stop" else signal.SIGKILL
_lock = Lock()

if _spec and _point not in POINTS:
    raise ValueError(f"HOLDFAST_CRASH names no crash point: {_point!r} (one of {', '.join(POINTS)})")
if _how not in ("", "stop"):
    raise ValueError(f"HOLDFAST_CRASH can end a process or 'stop' it, not {_how!r} it")


def reach(point: str) -> None:
    """Say that the process has come to `point`; the process ends here if a test asked for it."""
    if _point == point:
        _maybe_die()


def _maybe_die() -> None:
    global _left
    with _lock:
        _left -= 1
        if _left != 0:
            return
    mark = os.environ.get("HOLDFAST_CRASH_MARK")
    if mark:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), _signal)
