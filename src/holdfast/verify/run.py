"""Plays scenarios: starts processes of the flow, lets them die as written, and has the sinks judged."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

from holdfast.core.crashpoints import NO_ORDERS, Orders
from holdfast.core.json import Json
from holdfast.runtime.script import Script
from holdfast.verify.actor import OWN_JVM, Actor, Ending
from holdfast.verify.classes import judge
from holdfast.verify.home import Home
from holdfast.verify.judged_run import JudgedRun, first_commit_after
from holdfast.verify.outcome import Timing
from holdfast.verify.scenario import Scenario, Step
from holdfast.verify.stage import Played, Stage, Variant
from holdfast.verify.supervised_run import SupervisedRun


def play(stage: Stage, scenario: Scenario, variant: Variant) -> Played:
    """From the middle of the golden run, or from the start, through all steps to the end; then the judge."""
    if not scenario.steps:
        return Played(False)
    home = stage.home(scenario.name, None if scenario.afresh else variant.middle)
    run = (SupervisedRun if scenario.supervised else _Run)(stage, scenario, variant, home)
    try:
        return run.play()
    finally:
        run.close()
        stage.done_with(home)


class _Run(JudgedRun):
    """Processes that each run all of the flow, one after the other."""

    def __init__(self, stage: Stage, scenario: Scenario, variant: Variant, home: Home) -> None:
        super().__init__(stage, scenario, variant, home)
        self._zombies: list[Actor] = []
        self._died = False  # whether a process has been started that may have
        self._died_at = self._seen_at = time.time()

    def play(self) -> Played:
        for number, step in enumerate(self._scenario.steps):
            wrong = self._step(number, step)
            if wrong is not None:
                return wrong
        ending = self._to_the_end()
        if ending.status != 0:
            return Played(True, error=ending.error)
        amiss = self._wake_zombies() or self._left_unread()
        if amiss is not None:
            return Played(True, error=amiss)
        caught_up_s = round(time.time() - self._seen_at, 2)
        return Played(
            True,
            self._judged(),
            timing=Timing(
                round(self._seen_at - self._died_at, 3),
                first_commit_after(self._home, self._seen_at),
                caught_up_s,
            ),
        )

    def close(self) -> None:
        """Leave no process behind."""
        for zombie in self._zombies:
            zombie.end()
        self._fsyncs.unlink(missing_ok=True)

    def _step(self, number: int, step: Step) -> Played | None:
        """Play one step; something if the scenario ends with it."""
        if step.damage and not self._damaged(step.damage):
            return Played(False)
        if step.damage == "setback":
            return self._set_back()
        mark = self._home.root.with_name(f"{self._home.root.name}.mark-{number}")
        mark.unlink(missing_ok=True)
        last = number == len(self._scenario.steps) - 1
        if not step.crash:
            # Only the files were touched, or it is a run in peace: the end of the scenario, or the start of the next step.
            return None if last else self._peaceful()
        actor = self._started(Orders(step.crash, str(mark)), step.own_jvm)
        wrong = self._held_up(actor, step) if step.crash.endswith(":stop") else None
        if wrong is not None:
            return wrong
        if actor not in self._zombies:
            ending = actor.wait()
            if not mark.exists():
                return Played(False, error=ending.error)
            if step.goes_on and ending.status != 0:
                return Played(True, error=ending.error)
        if mark.exists() and not step.goes_on:
            # Who creates it dies in the next moment. A worker's death is dealt with inside the run.
            self._died_at = mark.stat().st_mtime
            self._seen_at = time.time() if self._scenario.fault != "worker" else self._died_at
        mark.unlink(missing_ok=True)
        return None

    def _held_up(self, actor: Actor, step: Step) -> Played | None:
        """A process stands still: it comes back after its successor, or goes on when something was done meanwhile."""
        if not actor.wait_until_stopped():
            return Played(False, error=actor.wait().error)
        self._zombies.append(actor)
        self._stop_without_locks(actor.pid)
        if not step.goes_on:
            return None
        if step.restart:
            self._stage.restart_targets()
        refused = self._second() if step.second else None
        if refused is not None:
            return refused
        with self._locked_ledger() if step.locked_s else nullcontext():
            self._zombies.remove(actor)
            os.kill(actor.pid, signal.SIGCONT)
            time.sleep(step.locked_s)
        return None

    def _peaceful(self) -> Played | None:
        ending = self._started(NO_ORDERS).wait()
        return None if ending.status == 0 else Played(True, error=ending.error)

    def _started(self, orders: Orders, own_jvm: bool = False) -> Actor:
        until = self._halfway() if self._skips else self._golden.items
        plans = None if self._died and self._leaves_plans else self._golden.plans
        script = self._golden.script(until, plans)
        self._died = True
        fsyncs = self._fsyncs if self._scenario.fault == "power" else None
        how: dict[str, object] = {"orders": orders, "script": script, "drain": False, "fsyncs": fsyncs}
        if own_jvm:
            how["master"] = OWN_JVM
        return self._actor(None, **how)

    def _script(self, until: Mapping[str, int]) -> Script:
        return self._golden.script(until, self._golden.plans)

    def _to_the_end(self) -> Ending:
        """The successor: along the golden plans, or by plans of its own."""
        take_over = bool(self._zombies)
        if self._scenario.fault == "policy":
            plan = self._variant.other
            # It has no snapshots to take, and so none to wait for.
            script = replace(
                self._golden.script({}, None if self._leaves_plans else self._golden.plans), cuts=()
            )
            return self._actor(plan, script=script).wait()
        if not self._skips:
            script = self._golden.script({}, None if self._leaves_plans else self._golden.plans)
            return self._actor(script=script, take_over=take_over).wait()
        halfway = self._golden.script(self._halfway())
        ending = self._actor(script=halfway, drain=False, take_over=take_over).wait()
        return self._actor(script=self._golden.script({})).wait() if ending.status == 0 else ending

    def _set_back(self) -> Played:
        """The right outcome is to stop and to explain, and to leave the sinks alone."""
        before = self._stage.seen(self._variant.plan, self._home)
        ending = self._actor(script=self._script({})).wait()
        error = ending.error or {}
        if error.get("kind") != "SinkError" or "ahead of the ledger" not in str(error.get("message")):
            return Played(
                True, error=error or {"kind": "nothing", "message": "it went on as if nothing were wrong"}
            )
        after = self._stage.seen(self._variant.plan, self._home)
        return Played(True, tuple(judge(before[name], found) for name, found in after.items()))

    def _wake_zombies(self) -> Json | None:
        """Each must be refused and say so; what one said instead."""
        while self._zombies:
            zombie = self._zombies.pop()
            os.kill(zombie.pid, signal.SIGCONT)
            ending = zombie.wait()
            if not ending.killed and (ending.error or {}).get("kind") != "FencedError":
                return ending.error or {"kind": "nothing", "message": "a deposed process went on to its end"}
        return None

    @contextmanager
    def _locked_ledger(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._home.work / "ledger.db", timeout=60, isolation_level=None)) as db:
            db.execute("begin immediate")
            yield
            db.execute("rollback")

    def _second(self) -> Played | None:
        """Another process must be refused while the first is at work."""
        other = self._stage.another_session()
        ending = other.start(self._variant.plan, self._home, script=self._script({})).wait()
        if (ending.error or {}).get("kind") == "LedgerError":
            return None
        said = ending.error or {"kind": "nothing", "message": "a second process was let in"}
        return Played(True, error=said)
