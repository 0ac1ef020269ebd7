"""What befalls a worker from inside, when a file asks for it: `FAULT` in the worker's own directory of faults.

Imported by a flow's file, it waits in each worker for `HOLDFAST_WORKER.FAULT` in the directory that ILL_DIR names. Run as a
program, `python ill_worker.py ROOT WORKER`, it is a worker without Spark: a real lease, threads that share the interpreter as
a worker's loops do, and a child that stands for the JVM.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.core.errors import LedgerError
from holdfast.runtime.evidence import WORKER_VARIABLE

FAULTS = ("regex", "asleep", "deadlock", "cut")


def burn_the_interpreter() -> None:
    """One match that takes years, in C, with the interpreter's lock held."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleep_with_the_interpreter() -> None:
    """C code that forgets to let go of the interpreter's lock."""
    ctypes.PyDLL(None).sleep(3_600)


def deadlock_the_stages() -> None:
    """Whoever is about to commit waits for a lock that nobody lets go of."""
    from holdfast.runtime import stage_loop

    held = threading.Lock()
    held.acquire()
    stage_loop.crashpoints.reach = lambda point: held.acquire() if point == "commit.before" else None


def cut_off_the_ledger() -> None:
    """This process reaches the ledger no more."""
    from holdfast.ledger.sqlite import Sqlite

    def cut(*_: object) -> None:
        raise LedgerError("the ledger cannot be reached", operation="read", heals=True)

    Sqlite.reading = Sqlite.writing = cut


BEFALL = {
    "regex": burn_the_interpreter,
    "asleep": sleep_with_the_interpreter,
    "deadlock": deadlock_the_stages,
    "cut": cut_off_the_ledger,
}


def wait_for_orders(directory: Path, worker: str) -> None:
    """Fall ill when somebody wants it."""
    while True:
        for fault in FAULTS:
            if (directory / f"{worker}.{fault}").exists():
                BEFALL[fault]()
                return
        time.sleep(0.05)


def obey() -> None:
    """In a worker of a flow: wait for orders beside its work."""
    directory, worker = os.environ.get("ILL_DIR"), os.environ.get(WORKER_VARIABLE)
    if directory and worker:
        if os.environ.get("ILL_NATIVE"):
            _raise_from_outside(Path(directory).parent / "work", worker)
        threading.Thread(target=wait_for_orders, args=(Path(directory), worker), daemon=True).start()


def _work_a_little() -> None:
    """As a loop of a worker does: some milliseconds in the interpreter, then a rest."""
    while True:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            sum(range(500))
        time.sleep(0.04)


def main(root: Path, worker: str) -> None:
    """A worker without Spark, until it is ended."""
    from holdfast.runtime.lease import Lease

    if os.environ.get("ILL_NATIVE"):
        _raise_from_outside(root, worker)
    else:
        Lease(root, worker)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    for _ in range(6):
        threading.Thread(target=_work_a_little, daemon=True).start()
    wait_for_orders(root, worker)
    time.sleep(3_600)


def _raise_from_outside(root: Path, worker: str) -> None:
    """A wrong worker: its lease rises whether its interpreter gets anywhere or not, as if native code raised it."""
    code = (
        "import sys; from pathlib import Path; from holdfast.runtime.lease import Lease; import time\n"
        "Lease(Path(sys.argv[1]), sys.argv[2]); time.sleep(3600)"
    )
    subprocess.Popen([sys.executable, "-c", code, str(root), worker])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
