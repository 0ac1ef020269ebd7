"""Plays a scenario as `holdfast run` would: a supervisor, a worker that leads each group, and standbys that follow it.

All begins when every standby is ready: until then workers find only one more item at each source, and wait for the rest like
for a source that is slow to answer. Then the orders hold, of whichever process comes to the point first, the supervisor
included; one that dies is followed by another. The run ends by itself, and the sinks are judged as those of any other run.

A worker that was stopped is continued as soon as another has its place. It must be refused, and say so, or have been ended by
those who waited for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.core import crashpoints, limits
from holdfast.core.crashpoints import Orders
from holdfast.core.errors import FencedError
from holdfast.core.json import Json
from holdfast.runtime import process
from holdfast.runtime.describe import described
from holdfast.runtime.starting import LOGS, Started, log_of
from holdfast.runtime.supervisor import SupervisorOptions, supervise
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.verify.actor import Actor, result_of
from holdfast.verify.crew import Crew, Hand, replaced_at
from holdfast.verify.held_back import HeldBack
from holdfast.verify.home import Home
from holdfast.verify.judged_run import JudgedRun, first_commit_after
from holdfast.verify.nursery import Nursery
from holdfast.verify.outcome import Timing
from holdfast.verify.scenario import Scenario
from holdfast.verify.stage import Played, Stage, Variant

# A supervisor that dies is followed by another; one that always does would be for ever.
SUPERVISORS_MAX = 3


class SupervisedRun(JudgedRun):
    """A supervisor, the workers that it has a nursery fork, and what befalls them."""

    def __init__(self, stage: Stage, scenario: Scenario, variant: Variant, home: Home) -> None:
        super().__init__(stage, scenario, variant, home)
        [self._step] = scenario.steps
        self._plan = stage.moved(variant.plan, home)
        self._described = described(self._plan)
        self._go, mark = (home.root.with_name(f"{home.root.name}.{name}") for name in ("go", "mark"))
        # What is lost already is made again when a run begins, before anybody else is there.
        after = "" if self._step.damage else str(self._go)
        self._orders = Orders(self._step.crash, str(mark), after=after)
        self._replaced_before = len(replaced_at(home.work))
        self._nursery: Nursery | None = None
        self._supervisors: list[Actor] = []
        self._killed_at: float | None = None  # when somebody was killed from outside before the orders struck

    def play(self) -> Played:
        self._clear()
        if self._step.damage and not self._damaged(self._step.damage):
            return Played(False)
        self._nursery = Nursery(self._live, self._home.log.with_name("nursery"))
        self._supervise()
        wrong = self._until(self._all_are_ready, "not all standbys got ready")
        if wrong is None:
            self._begin()
            wrong = self._until(self._has_struck, "the run did not end") or self._then()
        wrong = wrong or self._to_its_end()
        if wrong is not None:
            return Played(self._died_at is not None, error={"kind": "supervised run", **wrong})
        return Played(False) if self._died_at is None else self._judged_at_the_end()

    def close(self) -> None:
        """Leave no process and no file behind."""
        for supervisor in self._supervisors:
            supervisor.end()
        if self._nursery is not None:
            self._nursery.close()
        self._clear()
        logs = (self._home.work / LOGS).glob("*.log")
        killed = [log.stem for log in logs if not result_of(log).exists()]
        self._stage.release(self._home, [self._stage.session_of(self._home, worker) for worker in killed])

    def _clear(self) -> None:
        for path in (self._go, *map(Path, self._orders.marks)):
            path.unlink(missing_ok=True)

    # What processes do.

    def _live(self, number: int, spec: WorkerSpec) -> int:
        """The life of a worker, in a process of its own."""
        os.chdir(self._home.root)
        victims = self._step.victims
        if victims == "any" or (victims == "first") == (number == 0):
            crashpoints.obey(self._orders)
        # Whoever comes after a death plans for itself where the policy leaves the recorded plans; of several groups, all do.
        leaves = self._leaves_plans and (number > 0 or len(self._described["groups"]) > 1)
        plans = None if leaves else self._golden.plans
        script = self._golden.script(self._halfway() if self._skips else {}, plans)
        return process.main(spec, lambda _: self._plan, HeldBack.of(script, self._go, self._held()))

    def _held(self) -> dict[str, int]:
        """One item for those that lead, so that standbys are started and have something to practise on."""
        start = dict.fromkeys(self._golden.items, 0) if self._scenario.afresh else self._variant.until
        return {source: items + 1 for source, items in start.items()}

    def _supervise(self) -> None:
        nursery = self._nursery
        assert nursery is not None
        spec = WorkerSpec(
            flow=self._plan.name,
            work_dir=str(self._home.work),
            worker="",
            group="",
            until_idle=True,
            drain=not self._skips,
            master="",
            tasks=self._stage.tasks,
        )

        def start(flow: str, worker: WorkerSpec, environment: Mapping[str, str]) -> Started:
            master = self._stage.session_of(self._home, worker.worker)
            return nursery.start(flow, replace(worker, master=master), environment)

        def act() -> None:
            crashpoints.obey(self._orders)
            supervise(self._described, spec, SupervisorOptions(start=start))

        self._supervisors.append(Actor(act, self._home.log, bounded=False))

    # What is waited for, and done.

    def _until(self, condition: Callable[[], bool], otherwise: str) -> Json | None:
        """Wait for something, or for the end of the run; what is wrong, if it takes too long."""
        deadline = time.monotonic() + limits.VERIFY_RUN_MS_MAX / 1000
        while not condition() and not self._is_over():
            if time.monotonic() > deadline:
                return {"message": otherwise}
            time.sleep(limits.WATCH_MS / 4000)
        return None

    def _is_over(self) -> bool:
        """Whether the run has come to its end. A supervisor that was killed is followed by another: that is not the end."""
        last = self._supervisors[-1]
        if not last.has_ended():
            return False
        if not last.wait().killed or len(self._supervisors) >= SUPERVISORS_MAX:
            return True
        if not self._step.unwatched or self._died_at is not None:
            self._supervise()
        return False

    def _all_are_ready(self) -> bool:
        return Crew.of(self._home.work).is_complete(self._described["groups"])

    def _begin(self) -> None:
        """From here on there is more to read, and the orders hold."""
        if self._step.unwatched:
            self._supervisors[-1].end()
        self._go.touch()
        if self._step.leader_dies:
            self._killed_at = time.time()
            for leader in Crew.of(self._home.work).leaders:
                leader.process.signal(signal.SIGKILL)

    def _has_struck(self) -> bool:
        return self._died_at is not None

    @property
    def _died_at(self) -> float | None:
        """When the first of those died that were to; None before all have."""
        marks = [Path(mark) for mark in self._orders.marks]
        if not all(mark.exists() for mark in marks):
            return None
        return min([mark.stat().st_mtime for mark in marks] + ([self._killed_at] if self._killed_at else []))

    def _then(self) -> Json | None:
        """What is done when the orders have struck."""
        if self._died_at is None or not self._step.crash.endswith(":stop"):
            return None
        wrong = self._until(lambda: Crew.of(self._home.work).stopped() is not None, "nobody stands still")
        stopped = Crew.of(self._home.work).stopped()
        if wrong is not None or stopped is None:
            return wrong  # It was ended already, by who waited for it.
        return self._kill_with_another(stopped) if self._step.fellow_dies else self._continue(stopped)

    def _kill_with_another(self, stopped: Hand) -> Json | None:
        fellow = Crew.of(self._home.work).fellow(stopped)
        if fellow is None:
            return {"message": f"there was nobody to be killed with {stopped.name}"}
        for hand in (stopped, fellow):
            hand.process.signal(signal.SIGKILL)
        return None

    def _continue(self, stopped: Hand) -> Json | None:
        """Whoever stands still comes back when somebody else has its place: it must be refused, and say so."""
        before = len(self._replaced())
        self._stop_without_locks(stopped.process.pid)
        wrong = self._until(
            lambda: len(self._replaced()) > before or Crew.of(self._home.work).has_finished,
            f"{stopped.name} stands still, and was not replaced",
        )
        if wrong is not None:
            return wrong
        deposed = len(self._replaced()) > before
        stopped.process.signal(signal.SIGCONT)
        deadline = time.monotonic() + limits.FENCED_MS_MAX / 1000
        while stopped.process.lives() and time.monotonic() < deadline:
            time.sleep(limits.WATCH_MS / 1000)
        stopped.process.end()  # As a supervisor does with workers that it has started itself.
        log = log_of(self._home.work, stopped.name)
        said = log.read_text(errors="replace")
        if deposed and result_of(log).exists() and FencedError.__name__ not in said:
            return {
                "message": f"{stopped.name} was replaced, came back, was not refused, and said: {said[-500:]}"
            }
        return None

    def _replaced(self) -> list[float]:
        """When somebody was replaced or fenced off in this run."""
        return replaced_at(self._home.work)[self._replaced_before :]

    def _to_its_end(self) -> Json | None:
        wrong = self._until(lambda: False, "the run did not end")
        if wrong is not None:
            return wrong
        ending = self._supervisors[-1].wait()
        if ending.status == 0:
            return None
        return ending.error or {"message": "every supervisor was killed"}

    def _judged_at_the_end(self) -> Played:
        if self._skips:
            ending = self._actor(script=self._golden.script({})).wait()
            if ending.status != 0:
                return Played(True, error=ending.error)
        amiss = self._left_unread()
        if amiss is not None:
            return Played(True, error=amiss)
        died_at, replaced = self._died_at, self._replaced()
        assert died_at is not None
        timing = Timing()
        if replaced:
            caught_up_s = round(time.time() - replaced[0], 2)
            first_s = first_commit_after(self._home, replaced[0])
            timing = Timing(round(replaced[0] - died_at, 3), first_s, caught_up_s)
        return Played(True, self._judged(), timing=timing, failovers=len(replaced))
