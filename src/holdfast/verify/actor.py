"""A process that runs the flow once, forked from one that has everything imported.

Invariants: the process that forks has no threads and no connection of its own, so nothing is torn apart by it; a forked
process never returns into the code that forked it. It talks to the Connect server under the session of its lane: a
successor takes the dead one's session, interrupts its jobs, and finds its Python workers warm.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.core import crashpoints, limits
from holdfast.core.crashpoints import NO_ORDERS, Orders
from holdfast.core.errors import FlowError, HoldfastError
from holdfast.core.json import Json
from holdfast.core.secrets import without_secrets
from holdfast.flow.flow_plan import FlowPlan
from holdfast.runtime.failure import facts_of, whole
from holdfast.runtime.script import UNSCRIPTED, Script
from holdfast.storage.atomic import fsync_dir
from holdfast.verify.home import Home
from holdfast.verify.parent import die_with_the_parent
from holdfast.verify.power import note_what_is_fsynced

OWN_JVM = "local[2]"


@dataclass(frozen=True)
class Part:
    """What one process is to do."""

    plan: FlowPlan
    home: Home
    master: str  # the Connect server, with the session of the lane; or a JVM of its own
    orders: Orders = NO_ORDERS
    script: Script = UNSCRIPTED
    drain: bool = True
    take_over: bool = False
    tasks: int | None = None
    fsyncs: Path | None = None  # where to note what is fsynced

    def play(self) -> list[str]:
        """Run the flow until it is idle; the modules that this took."""
        from pyspark.sql import SparkSession

        from holdfast.runtime.worker import RunOptions, run

        os.chdir(self.home.root)
        if self.fsyncs:
            note_what_is_fsynced(self.fsyncs)
            fsync_dir(
                self.home.root
            )  # what was made for the run, such as the place of the sinks, is not the flow's to lose
        crashpoints.obey(self.orders)
        spark = None
        if self.master != OWN_JVM:
            spark = SparkSession.builder.remote(self.master).getOrCreate()
            spark.interruptAll()
        options = RunOptions(
            until_idle=True,
            drain=self.drain,
            spark=spark,
            master=OWN_JVM,
            take_over=self.take_over,
            tasks=self.tasks,
            script=self.script,
        )
        run(self.plan, self.home.work, options)
        return list(sys.modules)


@dataclass(frozen=True)
class Ending:
    """How a process ended, and what it returned."""

    status: int  # as subprocess has it: negative for a signal
    seconds: float
    value: object = None
    error: Json | None = None

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        return self.status == -signal.SIGKILL

    def returned(self) -> object:
        """The value, or the error that it ended with, raised here."""
        if self.status != 0:
            error = self.error or {"kind": "exit", "message": f"a process ended with status {self.status}"}
            raise failed(error)
        return self.value


def import_all(names: Iterable[str]) -> None:
    """Have what one process needed imported before the next are forked: each would take half a second over it."""
    for name in names:
        # Some are made by others while they are imported, and have no file.
        with suppress(ImportError):
            importlib.import_module(name)


def failed(facts: Json) -> HoldfastError:
    """The error of another process."""
    return FlowError(
        f"{facts['kind']}: {facts['message']}", operation="verify", stage=facts.get("stage"), epoch=facts.get("epoch"),
        hint=facts.get("hint"),
    )  # fmt: skip


def result_of(log: Path) -> Path:
    """Where a process with this log leaves its result; one that was killed leaves none."""
    return log.with_name(f"{log.name}.result")


class Actor:
    """A forked process and the file in which it leaves its result."""

    def __init__(self, act: Callable[[], object], log: Path, *, bounded: bool = True) -> None:
        self._started = time.monotonic()
        self._deadline = self._started + (limits.VERIFY_RUN_MS_MAX / 1000 if bounded else math.inf)
        self._result = result_of(log)
        self._result.unlink(missing_ok=True)
        self._ending: Ending | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _perform(act, log, self._result)

    def wait(self) -> Ending:
        """Wait until it ends; one that takes too long is ended."""
        while not self.has_ended():
            if time.monotonic() > self._deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(limits.WATCH_MS / 4000)
        assert self._ending is not None
        return self._ending

    def has_ended(self) -> bool:
        """Whether it has come to its end, without waiting for it."""
        if self._ending is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                value, error = (
                    pickle.loads(self._result.read_bytes()) if self._result.exists() else (None, None)
                )
                seconds = time.monotonic() - self._started
                self._ending = Ending(os.waitstatus_to_exitcode(status), seconds, value, error)
        return self._ending is not None

    def end(self) -> None:
        """Have it ended, with all that it started, if it has not ended by itself."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait_until_stopped(self) -> bool:
        """Wait until it stands still; False if it ended instead."""
        while time.monotonic() < self._deadline:
            try:
                state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return False
            if state in "TZ":
                return state == "T"
            time.sleep(limits.WATCH_MS / 4000)
        return False


def _perform(act: Callable[[], object], log: Path, result: Path) -> None:
    """The whole life of a forked process."""
    status, value, error = 1, None, None
    try:
        fd = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        # The one who forked is told to stop, and this one ends with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_the_parent()
        value, status = act(), 0
    except BaseException as caught:
        print(without_secrets(whole(caught)), file=sys.stderr)
        error = facts_of(caught)
    try:
        # Renamed, as it may be killed while it writes: half a result is none.
        unfinished = result.with_name(f"{result.name}.unfinished")
        unfinished.write_bytes(pickle.dumps((value, error)))
        unfinished.rename(result)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # No clean-up of the belongings of the one who forked.
        os._exit(status)
