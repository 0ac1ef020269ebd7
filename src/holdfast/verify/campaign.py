"""All runs of one flow: the golden run and the gate, then every scenario of every policy, on two lanes.

A lane is a forked process with a session of its own; it plays its scenarios one after the other and tells each outcome.
"""

from __future__ import annotations

import os
import pickle
import selectors
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from holdfast.core.crashpoints import POINTS
from holdfast.core.errors import HoldfastError, PlanError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.runtime.script import Script
from holdfast.spark import daemon
from holdfast.verify.actor import Actor
from holdfast.verify.classes import Recovery, worst
from holdfast.verify.golden import Middle, gate, golden_run, in_small_epochs, in_the_middle, of_its_own
from holdfast.verify.outcome import Campaign, Progress, RunOutcome
from holdfast.verify.run import play
from holdfast.verify.scenario import (
    FAULTS,
    ONLY_SUPERVISED,
    PAIR,
    SUPERVISED,
    Scenario,
    pairs,
    scenarios,
    supervised_scenarios,
)
from holdfast.verify.server import connect_server
from holdfast.verify.shrink import shrunk
from holdfast.verify.stage import Golden, Played, Stage, Variant
from holdfast.verify.targets import Targets
from holdfast.verify.variants import AS_WRITTEN, anomalies, another, promised, variant, with_standbys

# Two lanes keep two cores busy: while one starts a process, the other computes.
LANES = 2


@dataclass(frozen=True)
class Wanted:
    """What a campaign is to try."""

    flow: str  # as the user names it
    policies: tuple[str, ...] = (AS_WRITTEN,)
    faults: tuple[str, ...] = ("kill", "worker")
    points: tuple[str, ...] = ()  # only these; all if none is named
    epochs: int = 6
    rows: int = 5_000  # of an item of generated rows, at most
    seed: int = 1
    tasks: int = 2
    pairs: int = 0  # runs with two deaths, chosen by the seed
    gate: bool = True
    shrink: bool = True
    restart: str | None = None  # a command that restarts the servers of the sinks
    keep: Path | None = None  # where the runs leave their directories
    standbys: int = 0  # for each group, in runs under a supervisor; 0 for runs of one process
    workers: int | None = None  # into how many groups the stages are spread, if not by the flow itself

    def check(self) -> None:
        """Raise for a name that does not exist."""
        for what, names, known in (("fault", self.faults, FAULTS), ("point", self.points, POINTS)):
            for name in names:
                if name not in known:
                    raise PlanError(
                        f"there is no {what} {name!r}",
                        operation="verify",
                        hint=f"There are {', '.join(known)}.",
                    )


def verify(plan: FlowPlan, wanted: Wanted, observe: Callable[[Progress], None] = lambda _: None) -> Campaign:
    """Crash a flow in every way that is asked for, and say what its sinks show of it."""
    wanted.check()
    root = wanted.keep or Path(tempfile.mkdtemp(prefix="holdfast-verify-"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        with connect_server(root, SERVER_SETTINGS) as address:
            return verify_on(address, plan, wanted, root, observe)
    finally:
        if wanted.keep is None:
            shutil.rmtree(root, ignore_errors=True)


def verify_on(
    address: str,
    plan: FlowPlan,
    wanted: Wanted,
    root: Path,
    observe: Callable[[Progress], None] = lambda _: None,
) -> Campaign:
    """The same on a server that is there already, in a directory that is the caller's."""
    started = time.monotonic()
    found = _Campaign(plan, wanted, root, address, observe)
    outcomes = found.run()
    facts = plan.name, tuple(found.notes), found.deterministic, tuple(outcomes)
    return Campaign(*facts, wanted.seed, POINTS, round(time.monotonic() - started, 1))


# One Python environment for all sessions, and workers that begin at once: they die with the jobs of drivers that died.
SERVER_SETTINGS = {
    **dict([daemon.SETTING]),
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.shuffle.compress": "false",
}


class _Campaign:
    """One campaign under way."""

    def __init__(
        self,
        plan: FlowPlan,
        wanted: Wanted,
        root: Path,
        address: str,
        observe: Callable[[Progress], None],
    ) -> None:
        self._given = plan
        spread = plan.spread(wanted.workers) if wanted.workers else plan
        self._plan = in_small_epochs(spread, wanted.rows)
        self._wanted = wanted
        self._root = root
        self._address = address
        self._observe = observe
        self._targets = Targets(self._plan)
        self._progress = Progress()
        self.notes: list[str] = []
        self.deterministic = True

    def run(self) -> list[RunOutcome]:
        try:
            return self._run()
        finally:
            if self._targets and self._wanted.keep is None:
                Actor(self._targets.end, self._root / "end.log").wait().returned()

    def _run(self) -> list[RunOutcome]:
        stage = self._stage("peace")
        self._say("running the flow in peace")
        first = Script(dict.fromkeys(self._plan.sources, self._wanted.epochs))
        golden = golden_run(stage, self._plan, first)
        if self._wanted.gate:
            self._say("running it with other tasks and epochs")
            differing, words = gate(stage, self._plan, golden)
            self.notes += words
            wrong = [verdict for verdict in differing if verdict.recovery is not Recovery.PRECISE]
            if wrong:
                self.deterministic = False
                self.notes += [
                    f"sink {v.sink}: other rows with another number of tasks ({v.checked})" for v in wrong
                ]
                return []
        variants, planned = self._variants(golden)
        outcomes = self._played(planned, variants)
        if not self._wanted.shrink:
            return outcomes
        return shrunk(outcomes, self._wanted.epochs, self._with_fewer)

    def _with_fewer(self, outcome: RunOutcome, epochs: int) -> RunOutcome | None:
        """The same fault on less input; None if that does no harm."""
        self._say(f"looking for it with {epochs} items")
        wanted = replace(
            self._wanted,
            policies=(outcome.policy,),
            faults=(outcome.fault,),
            points=(outcome.point,) if outcome.point else (),
            epochs=epochs,
            pairs=0,
            gate=False,
            shrink=False,
        )
        root = self._root / f"fewer-{epochs}"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        found = _Campaign(self._given, wanted, root, self._address, lambda _: None).run()
        return next((run for run in found if run.is_violation), None)

    def _variants(self, golden: Golden) -> tuple[dict[str, Variant], list[Scenario]]:
        plans: dict[str, FlowPlan] = {}
        for name in self._wanted.policies:
            try:
                plans[name], kept = variant(self._plan, name)
            except PlanError as error:
                self.notes.append(f"policy {name}: {error.message}")
            else:
                self.notes += [f"policy {name}: {reason}" for reason in (*kept, *anomalies(plans[name]))]
                if self._wanted.standbys:
                    plans[name], without = with_standbys(plans[name], self._wanted.standbys)
                    self.notes += [f"policy {name}: {reason}" for reason in without]
        variants: dict[str, Variant] = {}
        planned: list[Scenario] = []
        for name, middle in self._middles(plans, golden).items():
            variants[name] = Variant(
                name, plans[name], middle.home, middle.until, middle.golden, another(plans[name])
            )
            faults = self._possible(name, plans[name])
            counts = middle.reached, middle.golden.reached
            alone = tuple(fault for fault in faults if not self._is_supervised(fault))
            found = [
                *scenarios(name, alone, *counts, self._wanted.seed),
                *supervised_scenarios(
                    name, tuple(fault for fault in faults if fault not in alone), *counts, self._wanted.seed
                ),
            ]
            points = self._wanted.points
            planned += [s for s in found if not points or s.point in points]
            planned += pairs(
                name, self._wanted.pairs, middle.reached, self._wanted.seed, bool(self._wanted.standbys)
            )
        return variants, planned

    def _is_supervised(self, fault: str) -> bool:
        return bool(self._wanted.standbys) and fault in SUPERVISED

    def _middles(self, plans: Mapping[str, FlowPlan], golden: Golden) -> dict[str, Middle]:
        """The flow with each policy, shortly before its end; one lane makes every second of them."""
        self._say(f"running it with {', '.join(plans)} up to its last items")

        def act(number: int) -> dict[str, Middle]:
            stage = self._stage(f"peace-{number}")
            names = list(plans)[number::LANES]
            followed = {name: of_its_own(stage, name, plans[name], golden) for name in names}
            # Workers have an item more to go: standbys are started when the first of a group has got something done.
            more = 1 if self._wanted.standbys else 0
            return {name: in_the_middle(stage, name, plans[name], followed[name], more) for name in names}

        actors = [
            Actor(partial(act, number), self._root / f"peace-{number}.log", bounded=False)
            for number in range(LANES)
        ]
        try:
            found = [actor.wait().returned() for actor in actors]
        finally:
            for actor in actors:
                actor.end()
        made: dict[str, Middle] = {}
        for one in found:
            assert isinstance(one, dict)
            made |= one
        return {name: made[name] for name in plans}

    def _possible(self, name: str, plan: FlowPlan) -> tuple[str, ...]:
        """The faults that are asked for, without one that the flow does not say it survives."""
        why_not = {}
        if plan.survives != "machine":
            why_not["machine"] = (
                f'the loss of the machine is not tried, as the flow says survives="{plan.survives}"'
            )
        if not self._wanted.standbys:
            why_not |= dict.fromkeys(ONLY_SUPERVISED, "it takes --standbys")
        if self._wanted.restart is None:
            why_not["target"] = "no server is restarted, as --restart does not say how"
        faults = self._wanted.faults
        self.notes += [f"policy {name}: {why_not[fault]}" for fault in faults if fault in why_not]
        return tuple(fault for fault in faults if fault not in why_not)

    def _played(self, planned: Sequence[Scenario], variants: Mapping[str, Variant]) -> list[RunOutcome]:
        """Deal the scenarios to the lanes, and hear of the outcomes as they come."""
        self._progress.total = len(planned)
        self._say("crashing it")
        # A server that is restarted is another lane's too.
        alone = [scenario for scenario in planned if scenario.fault == "target"]
        others = [scenario for scenario in planned if scenario.fault != "target"]
        for dealt in ([others[number::LANES] for number in range(LANES)], [alone] if alone else []):
            lanes = [_Lane(self, number, part, variants) for number, part in enumerate(dealt)]
            try:
                self._listen(lanes)
                for lane in lanes:
                    lane.actor.wait().returned()
            finally:
                for lane in lanes:
                    lane.actor.end()
        order = {scenario.name: i for i, scenario in enumerate(planned)}
        return sorted(self._progress.outcomes, key=lambda o: order[_name(o)])

    def _listen(self, lanes: Sequence[_Lane]) -> None:
        with selectors.DefaultSelector() as selector:
            for lane in lanes:
                selector.register(lane.told, selectors.EVENT_READ, lane)
            while selector.get_map():
                for key, _ in selector.select():
                    outcome = key.data.hear()
                    if outcome is None:
                        selector.unregister(key.fileobj)
                    else:
                        self._progress.outcomes.append(outcome)
                        self._progress.done += 1
                        self._observe(self._progress)

    def play(self, stage: Stage, scenario: Scenario, variant: Variant) -> RunOutcome:
        """One scenario, from its start to its verdict."""
        started = time.monotonic()
        try:
            played = play(stage, scenario, variant)
        except HoldfastError as error:
            played = Played(True, error={"kind": type(error).__name__, "message": error.message})
        verdicts, wrong = played.verdicts, played.error
        return RunOutcome(
            scenario.policy,
            scenario.fault,
            scenario.point,
            played.reached,
            promised(variant.plan),
            worst(verdicts).recovery if verdicts else None,
            verdicts,
            played.timing,
            scenario.seed,
            self._command(scenario),
            f"{wrong['kind']}: {wrong['message']}" if wrong else None,
            round(time.monotonic() - started, 2),
            played.failovers,
        )

    def _command(self, scenario: Scenario) -> str:
        wanted = self._wanted
        words = ["holdfast", "verify", wanted.flow, "--policies", scenario.policy]
        if scenario.fault == PAIR:
            words += ["--faults", "", "--pairs", str(wanted.pairs)]
        else:
            words += ["--faults", scenario.fault]
            words += ["--points", scenario.point] if scenario.point else []
        words += [
            "--epochs",
            str(wanted.epochs),
            "--rows",
            str(wanted.rows),
            "--seed",
            str(wanted.seed),
            "--tasks",
            str(wanted.tasks),
        ]
        words += ["--standbys", str(wanted.standbys)] if wanted.standbys else []
        words += ["--workers", str(wanted.workers)] if wanted.workers else []
        words += ["--restart", wanted.restart] if scenario.fault == "target" and wanted.restart else []
        return shlex.join(words)

    def _stage(self, name: str) -> Stage:
        root = self._root / name
        root.mkdir(exist_ok=True)
        keep, restart = self._wanted.keep is not None, self._wanted.restart
        facts = self._address, Path.cwd(), root, self._wanted.tasks, self._targets
        return Stage(*facts, keep=keep, restart=restart)

    def _say(self, doing: str) -> None:
        self._progress.doing = doing
        self._observe(self._progress)


class _Lane:
    """A process that plays scenarios, and the pipe through which it tells what came of them."""

    def __init__(
        self,
        campaign: _Campaign,
        number: int,
        planned: Sequence[Scenario],
        variants: Mapping[str, Variant],
    ) -> None:
        ours, theirs = os.pipe()
        self.told: BinaryIO = os.fdopen(ours, "rb", buffering=0)

        def act() -> None:
            stage = campaign._stage(f"lane-{number}")
            with os.fdopen(theirs, "wb") as tell:
                for scenario in planned:
                    outcome = campaign.play(stage, scenario, variants[scenario.policy])
                    pickle.dump(outcome, tell)
                    tell.flush()

        self.actor = Actor(act, campaign._root / f"lane-{number}.log", bounded=False)
        os.close(theirs)

    def hear(self) -> RunOutcome | None:
        """The next outcome; None after the last."""
        with suppress(EOFError):
            found = pickle.load(self.told)
            assert isinstance(found, RunOutcome)
            return found
        self.told.close()
        return None


def _name(outcome: RunOutcome) -> str:
    return f"{outcome.policy}/{outcome.fault}" + (f"@{outcome.point}" if outcome.point else "")
