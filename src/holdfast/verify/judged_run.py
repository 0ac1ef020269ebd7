"""What all runs of scenarios share, whoever runs the flow: a directory, the flow in it, and the judge of its sinks."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from holdfast.core.json import Json
from holdfast.flow.flow_plan import FlowPlan
from holdfast.verify import damage
from holdfast.verify.actor import Actor
from holdfast.verify.classes import Verdict, judge
from holdfast.verify.home import Home
from holdfast.verify.reading import seen_in
from holdfast.verify.scenario import Scenario
from holdfast.verify.stage import Stage, Variant, halfway


class JudgedRun:
    """The run of one scenario."""

    def __init__(self, stage: Stage, scenario: Scenario, variant: Variant, home: Home) -> None:
        self._stage = stage
        self._scenario = scenario
        self._variant = variant
        self._golden = variant.golden
        self._home = home
        self._fsyncs = home.root.with_name(f"{home.root.name}.fsyncs")
        # Who comes after a death does not follow the golden plans where rows are skipped, or read again.
        policies = [stage.policy for stage in variant.plan.stages]
        self._leaves_plans = not all(policy.precise for policy in policies)
        self._skips = any(not policy.precise and not policy.repeats for policy in policies)

    def _actor(self, plan: FlowPlan | None = None, **how: object) -> Actor:
        return self._stage.start(plan or self._variant.plan, self._home, **how)

    def _halfway(self) -> dict[str, int]:
        """What is there to read when the process dies: a gap skips all of it, and the rest must come after."""
        start = self._variant.until if not self._scenario.afresh else dict.fromkeys(self._golden.items, 0)
        return halfway(start, self._golden.items)

    def _damaged(self, how: str) -> bool:
        if how == "power":
            return bool(damage.cut_power(self._home.root, self._fsyncs))
        if how == "machine":
            return damage.lose_machine(self._home.work)
        if how == "setback":
            damage.set_back(self._home.work, self._variant.middle.work)
            return True
        return damage.hurt(self._home.work, how, self._scenario.seed)

    def _left_unread(self) -> Json | None:
        """A run that ended well has read everything, whether or not a sink shows that it has not."""
        unread = self._stage.unread(self._variant.plan, self._home)
        return {"kind": "unread", "message": "; ".join(unread)} if unread else None

    def _stop_without_locks(self, pid: int) -> None:
        """One with a database's lock in its hand would be ended by its successor, or keep all waiting: a bit later."""
        databases = [self._home.work / "ledger.db", *self._home.sinks.glob("*.db")]
        while any(damage.is_locked(path) for path in databases):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
            os.kill(pid, signal.SIGSTOP)

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


def first_commit_after(home: Home, moment: float) -> float | None:
    with closing(sqlite3.connect(home.work / "ledger.db", timeout=30)) as ledger:
        query = "select min(committed_ms) from manifests where committed_ms > ?"
        found = ledger.execute(query, (int(moment * 1000),)).fetchone()[0]
    return None if found is None else round(found / 1000 - moment, 2)
