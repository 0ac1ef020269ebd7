"""A worker that gets ready comes after others, and back to its place when it is called: with and without privileges."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# What the kernel says of all threads, while lowered and afterwards: nice values, policies, and the session's group.
TELLS = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
from holdfast.runtime import priority

def told():
    tids = [int(name) for name in os.listdir("/proc/self/task")]
    group = Path("/proc/self/autogroup")
    nice = group.read_text().split()[-1] if group.exists() else "0"
    return [
        sorted({os.getpriority(os.PRIO_PROCESS, tid) for tid in tids}),
        sorted({os.sched_getscheduler(tid) for tid in tids}),
        int(nice),
    ]

if sys.argv[1] == "unprivileged":
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its own files in /proc are its own, as after an exec
how = priority.lower()
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
low = told()
time.sleep(0.3)  # the kernel lets a group be changed only so often
priority.restore()
print(json.dumps([how, low, told()]))
"""


def told(who: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", TELLS, who], capture_output=True, text=True, check=True, start_new_session=True
    )
    found: list[object] = json.loads(done.stdout)
    return found


NORMAL = [[0], [os.SCHED_OTHER], 0]

LOW = {
    "nice": [[5], [os.SCHED_OTHER], 0],
    "group": [[0], [os.SCHED_OTHER], 5],
    "batch": [[0], [os.SCHED_BATCH], 0],
}


@pytest.mark.parametrize("who", ["as it is", "unprivileged"])
def test_a_worker_in_the_background_has_low_priority_and_gets_back_to_its_own(who: str) -> None:
    if who == "unprivileged" and os.getuid() != 0:
        pytest.skip("only root can become somebody else; without root the other case shows it")
    if os.getpriority(os.PRIO_PROCESS, 0) != 0:
        pytest.skip("the tests themselves run at another priority")
    how, low, after = told(who)
    assert low == LOW[str(how)]
    assert after == NORMAL
