"""A flow under a supervisor: started as a user would, with its workers watched, stopped and killed from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from holdfast.core.errors import LedgerError
from holdfast.core.json import Json
from holdfast.ledger.location import is_work_directory
from holdfast.ledger.roster import roster
from stand import SECONDS_MAX, Stand

FLOW = Path(__file__).with_name("guarded_flow.py")
HOLDFAST = Path(sys.executable).with_name("holdfast")


class Guard:
    """`holdfast run` on a stand's home."""

    def __init__(
        self,
        stand: Stand,
        policies: str,
        *options: str,
        crash: str = "",
        quiet: bool = True,
        command: Sequence[str] = (str(HOLDFAST),),
        flow: Path = FLOW,
    ) -> None:
        self.stand = stand
        self.root = stand.home / "work"
        self._policies = policies
        self._options = (*options, *(["--quiet"] if quiet else []))
        self._command = command  # what goes before `run`
        self._flow = flow
        self.process = self._start(crash)

    def _start(self, crash: str = "") -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(FLOW.parent), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [
                *(*self._command, "run", str(self._flow), "--work-dir", str(self.root)),
                *("--master", "local[2]", "--tasks", "2", *self._options),
            ],
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "STAND_HOME": str(self.stand.home),
                "STAND_POLICIES": self._policies,
                "HOLDFAST_CRASH": crash,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def again(self) -> None:
        """Start the same command once more."""
        self.process = self._start()

    def group(self, name: str = "main") -> Json:
        """The group as the ledger has it now."""
        found: Json = roster(self.root)["groups"][name]
        return found

    def primary(self, name: str = "main") -> Json:
        """The worker that leads."""
        group = self.group(name)
        return next(worker for worker in group["workers"] if worker["worker"] == group["primary"])

    def pid(self, worker: Json) -> int:
        return int(worker["process"]["pid"])

    def kill_primary(self, group: str = "main") -> str:
        """kill -9 the worker that leads, outside a ledger transaction or inside one; its name."""
        primary = self.primary(group)
        os.kill(self.pid(primary), signal.SIGKILL)
        return str(primary["worker"])

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so; the supervisor must be there all the time."""
        deadline = time.monotonic() + SECONDS_MAX
        while not self._is(condition):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"not in time: {what}; {self.stand.events()[-10:]}"
            time.sleep(0.05)

    def _is(self, condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except (KeyError, StopIteration, LedgerError):
            # The ledger, the group or its primary is not there yet.
            return False

    def wait_for_head(self, head: int, stage: str = "totals") -> None:
        self.wait(f"epoch {head} of {stage}", lambda: self.stand.head(stage) >= head)

    def wait_for_standby(self, rehearsals: int = 1, but: Collection[str] = ()) -> None:
        """Wait until somebody could take over, but for those who are known to be ill."""

        def stands_by() -> bool:
            group = self.group()
            out = {group["primary"], *but}
            others = [w for w in group["workers"] if w["worker"] not in out and w["lives"]]
            return any(w["part"] == "hot standby" or w["rehearsals"] >= rehearsals for w in others)

        self.wait("a standby", stands_by)

    def wait_for_another_primary(self, before: str, group: str = "main") -> None:
        self.wait(f"a successor of {before}", lambda: self.group(group)["primary"] not in (None, before))

    def wait_until_all_is_out(self) -> None:
        """Wait until every file has gone through every stage to every sink."""
        self.wait("the end of the input", self.stand.all_is_out)

    def stop(self) -> tuple[int, str]:
        """A clean stop; the exit status and what was said."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, out + err

    def close(self) -> None:
        """End everything that is left."""
        pids = [self.process.pid] if self.process.poll() is None else []
        if is_work_directory(self.root):
            for group in roster(self.root)["groups"].values():
                pids += [self.pid(worker) for worker in group["workers"] if worker["lives"]]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate()


# What starts a guard, and ends it with the test.
Guarded = Callable[..., Guard]
