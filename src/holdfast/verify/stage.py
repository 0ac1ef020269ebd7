"""Where runs of a flow take place: a session of a Connect server, and for each run a directory and targets of its own.

Everything that touches Spark, Arrow, a server or the user's code happens in forked processes; the one that forks them
only waits.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.core.json import Json
from holdfast.flow.flow_plan import FlowPlan
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.unread import all_unread
from holdfast.runtime.script import Script, Versions, recorded, recorded_cuts
from holdfast.verify.actor import Actor, Ending, Part
from holdfast.verify.classes import Seen, Verdict
from holdfast.verify.home import Home, relocated
from holdfast.verify.outcome import Timing
from holdfast.verify.reading import seen_in
from holdfast.verify.targets import Targets

Plans = Mapping[str, Mapping[int, Json]]


@dataclass(frozen=True)
class Golden:
    """The run in peace that others are compared with."""

    home: Home
    plans: Plans
    found: Mapping[
        str, Sequence[Item]
    ]  # by source, its items: what is found next may depend on when one looks
    seen: Path  # what its sinks held, pickled
    reached: Mapping[str, int]  # how often each point was
    cuts: Sequence[Mapping[str, int]] = ()  # where its snapshots cut the stages

    @property
    def items(self) -> Mapping[str, int]:
        """By source, how many items there are."""
        return {source: len(items) for source, items in self.found.items()}

    def script(self, until: Mapping[str, int], plans: Plans | None = None) -> Script:
        """The same items up to a position, by plans or freely."""
        cuts = self.cuts if plans is not None else ()
        return Script(until, plans, self.found, cuts, self.versions)

    @property
    def versions(self) -> Versions:
        """What tables held: all runs are enriched alike, whatever becomes of the files meanwhile."""
        newest = {
            stage: bodies[epoch]["tables"]
            for stage, bodies in self.plans.items()
            for epoch in sorted(bodies)
            if "tables" in bodies[epoch]
        }
        return Versions(self.home.work, newest)


@dataclass(frozen=True)
class Variant:
    """The flow with one recovery policy, stopped on its way through the golden run."""

    name: str
    plan: FlowPlan
    middle: Home
    until: Mapping[str, int]  # what it has read there
    golden: Golden  # what its runs follow and are compared with
    other: FlowPlan  # with another policy: under it the flow can go on too


@dataclass(frozen=True)
class Played:
    """What came of a scenario."""

    reached: bool
    verdicts: tuple[Verdict, ...] = ()
    error: Json | None = None
    timing: Timing = field(default_factory=Timing)
    failovers: int | None = None  # how often somebody was replaced; None for a run without a supervisor


class Stage:
    """A directory, a session of a Connect server, and the servers of the sinks."""

    def __init__(
        self,
        address: str,
        origin: Path,
        root: Path,
        tasks: int,
        targets: Targets,
        *,
        keep: bool = False,
        restart: str | None = None,
    ) -> None:
        self._address = address
        self._campaign = uuid.uuid4()
        self._master = self._session(self._campaign)
        self._origin = origin
        self._root = root
        self.tasks = tasks
        self._targets = targets
        self._keep = keep  # the directories of runs, for somebody who wants to look at them
        self._restart = restart  # a command

    def home(self, name: str, like: Home | None = None) -> Home:
        """A new place for a run; with `like`, one that holds what another holds."""
        home = Home(self._root / name.replace("/", "-"))
        self.drop(home)
        if like is None:
            home.made()
            self._do(home, lambda: self._targets.make(home))
        else:
            like.copied(home.root)
            self._do(home, lambda: self._targets.copy(like, home))
        return home

    def drop(self, home: Home) -> None:
        """Leave nothing of a run."""
        if home.root.exists():
            self._do(home, lambda: self._targets.drop(home))
            shutil.rmtree(home.root, ignore_errors=True)

    def done_with(self, home: Home) -> None:
        """Drop what a run has left, unless somebody wants to look at it."""
        if not self._keep:
            self.drop(home)

    def run(self, plan: FlowPlan, home: Home, **how: object) -> Ending:
        """One process of a flow, from its start to its end."""
        return self.start(plan, home, **how).wait()

    def start(self, plan: FlowPlan, home: Home, **how: object) -> Actor:
        """One process of a flow, under way."""
        how = {"master": self._master, "tasks": self.tasks, **how}
        part = Part(self.moved(plan, home), home, **how)  # type: ignore[arg-type]
        return Actor(part.play, home.log)

    def moved(self, plan: FlowPlan, home: Home) -> FlowPlan:
        """The flow with its sinks in a run's directory."""
        return self._targets.moved(relocated(plan, self._origin, home), home)

    def seen(self, plan: FlowPlan, home: Home) -> dict[str, Seen]:
        """What the sinks of a run hold, read by a process of its own."""
        moved = self.moved(plan, home)
        found = Actor(lambda: seen_in(moved, home), home.log).wait().returned()
        assert isinstance(found, dict)
        return found

    def unread(self, plan: FlowPlan, home: Home) -> list[str]:
        """What a run that has come to its end has not read, in words."""
        found = Actor(lambda: _unread(plan, home), home.log).wait().returned()
        assert isinstance(found, list)
        return found

    def plans(self, home: Home) -> Plans:
        """The plans of all epochs that a run has committed."""
        found = Actor(lambda: _recorded(home), home.log).wait().returned()
        assert isinstance(found, dict)
        return found

    def cuts(self, home: Home) -> list[dict[str, int]]:
        """Where the snapshots of a run cut its stages."""
        found = Actor(lambda: _cuts(home), home.log).wait().returned()
        assert isinstance(found, list)
        return found

    def restart_targets(self) -> None:
        """Have the user's command restart the servers behind the sinks."""
        assert self._restart is not None, "without a command the fault is not asked for"
        done = subprocess.run(
            self._restart,
            shell=True,
            cwd=self._origin,
            capture_output=True,
            text=True,
            timeout=limits.VERIFY_RUN_MS_MAX / 1000,
            check=False,
        )
        if done.returncode:
            raise FlowError(
                f"--restart ended with status {done.returncode}: {done.stderr.strip()[-500:]}",
                operation="verify",
            )

    def another_session(self) -> Stage:
        """The same server under another session: nobody's jobs are interrupted by it."""
        return Stage(self._address, self._origin, self._root, self.tasks, self._targets)

    def session_of(self, home: Home, worker: str) -> str:
        """The session of one worker of a run: each has its own, as each has its own Spark elsewhere."""
        return self._session(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._campaign}/{home.root}/{worker}"))

    def release(self, home: Home, sessions: Sequence[str]) -> None:
        """End what workers that were killed have left under way in the server."""

        def act() -> None:
            from pyspark.sql import SparkSession

            for address in sessions:
                session = SparkSession.builder.remote(address).create()
                session.interruptAll()
                session.stop()

        if sessions:
            Actor(act, home.log).wait()

    def _session(self, number: uuid.UUID) -> str:
        return f"{self._address}/;session_id={number}"

    def _do(self, home: Home, act: Callable[[], None]) -> None:
        if self._targets:
            Actor(act, home.log).wait().returned()


def halfway(start: Mapping[str, int], stop: Mapping[str, int]) -> dict[str, int]:
    """Between two positions, by source."""
    return {name: (start[name] + items + 1) // 2 for name, items in stop.items()}


def _cuts(home: Home) -> list[dict[str, int]]:
    with closing(Ledger(home.work)) as ledger:
        return recorded_cuts(ledger)


def _unread(plan: FlowPlan, home: Home) -> list[str]:
    with closing(Ledger(home.work)) as ledger, ledger.read() as tx:
        return [str(one) for one in all_unread(tx, plan.cursors())]


def _recorded(home: Home) -> Plans:
    with closing(Ledger(home.work)) as ledger:
        return recorded(ledger)
