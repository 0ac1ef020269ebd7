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
from holdfast.runtime import process
from holdfast.runtime.describe import described
from holdfast.runtime.starting import Started, log_of
from holdfast.runtime.supervisor import SupervisorOptions, supervise
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.verify.actor import Actor
from holdfast.verify.crew import Crew, replaced_at
from holdfast.verify.held_back import HeldBack
from holdfast.verify.home import Home
from holdfast.verify.nursery import Nursery
from holdfast.verify.outcome import Timing
from holdfast.verify.playing import Playing, first_commit_after
from holdfast.verify.scenario import Scenario
from holdfast.verify.stage import Played, Stage, Variant

# A supervisor that dies is followed by another; one that always does would be for ever.
SUPERVISORS_MAX = 3


class SupervisedRun(Playing):
    """A supervisor, the workers that it has a nursery fork, and what befalls them."""

    def __init__(self, stage: Stage, scenario: Scenario, variant: Variant, home: Home) -> None:
        super().__init__(stage, scenario, variant, home)
        [self._step] = scenario.steps
        self._plan = stage.moved(variant.plan, home)
        self._described = described(self._plan)
        self._go, mark = (home.root.with_name(f"{home.root.name}.{name}") for name in ("go", "mark"))
        for path in home.root.parent.glob(f"{home.root.name}.mark*"):
            path.unlink()
        self._go.unlink(missing_ok=True)
        # What is made again when a run begins is made before anybody is ready.
        after = "" if self._step.damage else str(self._go)
        self._orders = Orders(self._step.crash, str(mark), after=after)
        self._nursery = Nursery(self._live, home.log.with_name("nursery"))
        self._supervisors: list[Actor] = []
        self._replaced_before = len(replaced_at(home.work))

    def play(self) -> Played:
        if self._step.damage and not self._damaged(self._step.damage):
            return Played(False)
        self._supervise()
        wrong = self._until(self._all_are_ready, "not all standbys got ready")
        if wrong is not None:
            return wrong
        self._go.touch()
        if self._step.leader_dies:
            for leader in Crew.of(self._home.work).leaders:
                leader.signal(signal.SIGKILL)
        wrong = self._until(self._has_struck, "the run did not end")
        wrong = wrong or self._then() or self._to_its_end()
        if wrong is not None:
            return wrong
        if self._died_at is None:
            return Played(False)
        return self._done()

    def close(self) -> None:
        """Leave no process and no file behind."""
        for supervisor in self._supervisors:
            supervisor.end()
        self._nursery.close()
        for path in (self._go, *map(Path, self._orders.marks)):
            path.unlink(missing_ok=True)

    # What processes do.

    def _live(self, number: int, spec: WorkerSpec) -> int:
        """The life of a worker, in a process of its own."""
        os.chdir(self._home.root)
        victims = self._step.victims
        if victims == "any" or (victims == "first") == (number == 0):
            crashpoints.obey(self._orders)
        # Whoever comes after a death plans for itself where the policy leaves the recorded plans.
        plans = None if number and self._leaves_plans else self._golden.plans
        script = self._golden.script(self._halfway() if self._skips else {}, plans)
        return process.main(spec, lambda _: self._plan, HeldBack.of(script, self._go, self._held()))

    def _held(self) -> dict[str, int]:
        """One item for the primary, so that standbys are started and have something to practise on."""
        start = dict.fromkeys(self._golden.items, 0) if self._scenario.afresh else self._variant.until
        return {source: items + 1 for source, items in start.items()}

    def _supervise(self) -> None:
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

        def act() -> None:
            crashpoints.obey(self._orders)

            def start(flow: str, told: WorkerSpec, environment: Mapping[str, str]) -> Started:
                return self._nursery.start(flow, replace(told, master=self._stage.a_session()), environment)

            supervise(self._described, spec, SupervisorOptions(start=start))

        self._supervisors.append(Actor(act, self._home.log, bounded=False))

    # What is waited for.

    def _until(self, condition: Callable[[], bool], otherwise: str) -> Played | None:
        """Wait for something, or for the end of the run; what is wrong, if it takes too long."""
        deadline = time.monotonic() + limits.VERIFY_RUN_MS_MAX / 1000
        while not condition() and not self._supervisors[-1].has_ended():
            if time.monotonic() > deadline:
                return self._amiss(otherwise)
            time.sleep(limits.WATCH_MS / 1000)
        return None

    def _all_are_ready(self) -> bool:
        return Crew.of(self._home.work).is_complete(self._described["groups"])

    def _has_struck(self) -> bool:
        """Whether all that was ordered has happened; a supervisor that dies of it is followed by another."""
        last = self._supervisors[-1]
        if last.has_ended() and last.wait().killed and len(self._supervisors) < SUPERVISORS_MAX:
            self._supervise()
        return self._died_at is not None

    @property
    def _died_at(self) -> float | None:
        """When the first order was carried out; None before all are."""
        marks = [Path(mark) for mark in self._orders.marks]
        return marks[0].stat().st_mtime if all(mark.exists() for mark in marks) else None

    def _then(self) -> Played | None:
        """What somebody does when the orders have struck."""
        if self._died_at is None:
            return None
        if self._step.also == "supervisor":
            os.kill(self._supervisors[-1].pid, signal.SIGKILL)
        if self._step.also == "standby":
            for standby in Crew.of(self._home.work).standbys[:1]:
                standby.signal(signal.SIGKILL)
        return self._continue_the_stopped() if self._step.crash.endswith(":stop") else None

    def _continue_the_stopped(self) -> Played | None:
        """Whoever stands still comes back when somebody else has its place."""
        stopped = Crew.of(self._home.work).stopped()
        if stopped is None:
            return None  # It was ended already, by whoever waited for it.
        name, found = stopped
        self._stop_without_locks(found.pid)
        wrong = self._until(
            lambda: bool(self._replaced()),
            f"{name} stands still, and was not replaced",
        )
        if wrong is not None:
            return wrong
        found.signal(signal.SIGCONT)
        wrong = self._until(
            lambda: not found.lives(),
            f"{name} was replaced, came back, and did not end",
        )
        said = log_of(self._home.work, name).read_text(errors="replace")
        if wrong is None and "Error" in said and FencedError.__name__ not in said:
            return self._amiss(f"{name} was replaced, came back, and said: {said[-500:]}")
        return wrong

    def _replaced(self) -> list[float]:
        """When somebody was replaced or fenced off in this run."""
        return replaced_at(self._home.work)[self._replaced_before :]

    def _to_its_end(self) -> Played | None:
        wrong = self._until(lambda: False, "the run did not end")
        if wrong is not None:
            return wrong
        ending = self._supervisors[-1].wait()
        if ending.killed and len(self._supervisors) < SUPERVISORS_MAX:
            self._supervise()
            return self._to_its_end()
        if ending.killed:
            return self._amiss("every supervisor was killed")
        return None if ending.status == 0 else Played(True, error=ending.error)

    def _done(self) -> Played:
        """The run has come to its end: what of it, if its sinks are judged."""
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

    def _amiss(self, what: str) -> Played:
        return Played(True, error={"kind": "supervised run", "message": what})
