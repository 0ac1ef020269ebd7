"""Plays scenarios: starts processes of the flow, lets them die as written, and has the sinks judged."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from holdfast.core.crashpoints import NO_ORDERS, Orders
from holdfast.core.json import Json
from holdfast.runtime.script import Script
from holdfast.verify import damage
from holdfast.verify.actor import OWN_JVM, Actor, Ending
from holdfast.verify.classes import Verdict, judge
from holdfast.verify.home import Home
from holdfast.verify.outcome import Timing
from holdfast.verify.reading import seen_in
from holdfast.verify.scenario import Scenario, Step
from holdfast.verify.stage import Played, Stage, Variant, halfway


def play(stage: Stage, scenario: Scenario, variant: Variant) -> Played:
    """From the middle of the golden run, or from the start, through all steps to the end; then the judge."""
    if not scenario.steps:
        return Played(False)
    home = stage.home(scenario.name, None if scenario.afresh else variant.middle)
    run = _Run(stage, scenario, variant, home)
    try:
        return run.play()
    finally:
        run.close()
        stage.done_with(home)


class _Run:
    """One scenario being played."""

    def __init__(self, stage: Stage, scenario: Scenario, variant: Variant, home: Home) -> None:
        self._stage = stage
        self._scenario = scenario
        self._variant = variant
        self._golden = variant.golden
        self._home = home
        self._fsyncs = home.root.with_name(f"{home.root.name}.fsyncs")
        self._zombies: list[Actor] = []
        # Who comes after a death does not follow the golden plans where rows are skipped, or read again.
        policies = [stage.policy for stage in variant.plan.stages]
        self._leaves_plans = not all(policy.precise for policy in policies)
        self._skips = any(not policy.precise and not policy.repeats for policy in policies)
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
                _first_commit_after(self._home, self._seen_at),
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
        self._stop_without_locks(actor)
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
        where = {"master": OWN_JVM} if own_jvm else {}
        return self._actor(orders=orders, script=script, drain=False, fsyncs=fsyncs, **where)

    def _actor(self, **how: object) -> Actor:
        return self._stage.start(self._variant.plan, self._home, **how)

    def _script(self, until: Mapping[str, int]) -> Script:
        return self._golden.script(until, self._golden.plans)

    def _halfway(self) -> dict[str, int]:
        """What is there to read when the process dies: a gap skips all of it, and the rest must come after."""
        start = self._variant.until if not self._scenario.afresh else dict.fromkeys(self._golden.items, 0)
        return halfway(start, self._golden.items)

    def _to_the_end(self) -> Ending:
        """The successor: along the golden plans, or by plans of its own."""
        if not self._skips:
            script = self._golden.script({}, None if self._leaves_plans else self._golden.plans)
            return self._actor(script=script, take_over=bool(self._zombies)).wait()
        ending = self._actor(
            script=self._golden.script(self._halfway()), drain=False, take_over=bool(self._zombies)
        ).wait()
        script = self._golden.script({})
        return self._actor(script=script).wait() if ending.status == 0 else ending

    def _damaged(self, how: str) -> bool:
        if how == "power":
            return bool(damage.cut_power(self._home.root, self._fsyncs))
        if how == "machine":
            return damage.lose_machine(self._home.work)
        if how == "setback":
            damage.set_back(self._home.work, self._variant.middle.work)
            return True
        return damage.hurt(self._home.work, how, self._scenario.seed)

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

    def _left_unread(self) -> Json | None:
        """A run that ended well has read everything, whether or not a sink shows that it has not."""
        unread = self._stage.unread(self._variant.plan, self._home)
        return {"kind": "unread", "message": "; ".join(unread)} if unread else None

    def _stop_without_locks(self, actor: Actor) -> None:
        """One with a database's lock in its hand would be ended by its successor, or keep all waiting: a bit later."""
        databases = [self._home.work / "ledger.db", *self._home.sinks.glob("*.db")]
        while any(damage.is_locked(path) for path in databases):
            os.kill(actor.pid, signal.SIGCONT)
            time.sleep(0.02)
            os.kill(actor.pid, signal.SIGSTOP)

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

    def _judged(self) -> tuple[Verdict, ...]:
        plan, home, golden = self._variant.plan, self._home, self._golden.seen
        skipped = self._reference() if self._skips else None
        moved = self._stage.moved(plan, home)

        def act() -> tuple[Verdict, ...]:
            expected = pickle.loads(golden.read_bytes())
            left_out = pickle.loads(skipped.read_bytes()) if skipped else {}
            return tuple(
                judge(expected[name], found, left_out.get(name))
                for name, found in seen_in(moved, home).items()
            )

        found = Actor(act, home.log).wait().returned()
        assert isinstance(found, tuple)
        return found

    def _reference(self) -> Path:
        """What a run in peace with the same skips leaves in the sinks."""
        script = self._golden.script({}, self._stage.plans(self._home))
        # Nothing was skipped before the middle, and a clean stop there loses nothing.
        like = None if self._scenario.afresh else self._variant.middle
        home = self._stage.home(f"{self._home.root.name}.reference", like)
        self._stage.run(self._variant.plan, home, script=script, drain=False).returned()
        path = home.root / "seen"
        path.write_bytes(pickle.dumps(self._stage.seen(self._variant.plan, home)))
        kept = self._home.root / "skipped"
        shutil.copyfile(path, kept)
        self._stage.drop(home)
        return kept


def _first_commit_after(home: Home, moment: float) -> float | None:
    with closing(sqlite3.connect(home.work / "ledger.db", timeout=30)) as ledger:
        query = "select min(committed_ms) from manifests where committed_ms > ?"
        found = ledger.execute(query, (int(moment * 1000),)).fetchone()[0]
    return None if found is None else round(found / 1000 - moment, 2)
