"""Starts, watches and replaces workers. It imports neither pyspark nor the user's file, and outlives any JVM.

It sees a worker's exit at once, and its silence by the lease; what it does about either is decided by a pure function
(protocols/supervision.py) and done in the ledger first: a successor is named there, and finds out by itself. The
supervisor may die too: workers go on, and the next supervisor adopts those that run what it is told to run.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.core import crashpoints, limits
from holdfast.core.errors import FencedError, HoldfastError, LedgerError
from holdfast.core.ids import new_attempt_id
from holdfast.core.json import Json
from holdfast.core.python_path import SAFELY
from holdfast.ledger import groups, holder, standstill
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import chosen
from holdfast.ledger.patience import Patience
from holdfast.ledger.process import Process
from holdfast.protocols import supervision
from holdfast.protocols.detector import Terms
from holdfast.protocols.supervision import (
    ACTIVE,
    FAILED,
    FINISHED,
    STARTING,
    Admit,
    Expel,
    Forget,
    Promote,
    Seen,
    Start,
)
from holdfast.runtime.failure import error_of, is_hopeless
from holdfast.runtime.following import Follower
from holdfast.runtime.leftovers import Leftovers
from holdfast.runtime.news import News, Outlook
from holdfast.runtime.progress import Progress, Report
from holdfast.runtime.starting import LOGS, Starter, log_of, start_worker
from holdfast.runtime.supervised import Starts, View
from holdfast.runtime.survival import notices
from holdfast.runtime.watching import Look, Watch, Watching, process_of
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.storage import workdir


@dataclass(frozen=True)
class SupervisorOptions:
    """How a flow is to be supervised."""

    take_over: bool = False
    wait: bool = False
    observe: Callable[[Progress], None] | None = None
    ledger: str | None = field(default=None, repr=False)  # a URL, if it is not to be in the work directory
    start: Starter = start_worker


def planned(flow: str, workers: int | None, work_dir: Path | None = None) -> Json:
    """The plan of a flow, made by a short-lived process."""
    request = {"flow": flow, "workers": workers, "work_dir": str(work_dir) if work_dir else None}
    command = [sys.executable, *SAFELY, "-m", "holdfast.runtime.describe", json.dumps(request)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise HoldfastError(
            f"the process that plans {flow} ended with status {done.returncode}", operation="plan"
        )
    found: Json = json.loads(lines[-1])
    if "error" in found:
        raise error_of(found["error"])
    plan: Json = found["plan"]
    return plan


def supervise(plan: Json, spec: WorkerSpec, options: SupervisorOptions) -> Report | None:
    """Keep a flow's workers running until the flow is idle (if it is to end then), told to stop, or hopeless.

    Returns what the run did, or None if it was told to stop.
    """
    root = workdir.prepare(spec.work_dir)
    location = chosen(root, options.ledger, plan["flow"])
    ledger = Ledger(root, location)
    try:
        generation = _hold(ledger, plan["flow"], options)
        supervisor = _Supervisor(plan, replace(spec, work_dir=str(root)), options, root, ledger, generation)
        supervisor.follower.progress.notices.extend(notices(plan["survives"], location))
        try:
            ended = supervisor.run()
        finally:
            _resign(ledger, generation)
        return supervisor.follower.report(ledger, plan["flow"], generation) if ended else None
    finally:
        ledger.close()


def _hold(ledger: Ledger, flow: str, options: SupervisorOptions) -> int:
    while True:
        try:
            return holder.supervise(ledger, flow, by_force=options.take_over)
        except LedgerError as error:
            if not (options.wait and error.operation == "take"):
                raise
            time.sleep(limits.POLL_MS / 1000)


def _resign(ledger: Ledger, generation: int) -> None:
    """A deposed supervisor has nothing left to resign from."""
    try:
        holder.resign(ledger, generation)
    except FencedError:
        return


@dataclass
class _Supervisor:
    plan: Json
    spec: WorkerSpec
    options: SupervisorOptions
    root: Path
    ledger: Ledger
    generation: int
    starts: dict[str, Starts] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # whose process lives and whose lease has run out
    follower: Follower = field(default_factory=Follower)
    told: bool = False
    watching: Watching = field(init=False)
    leftovers: Leftovers = field(init=False)
    news: News = field(init=False)
    outlook: Outlook = field(init=False)
    shown: Outlook = field(init=False)
    view: View | None = None

    def __post_init__(self) -> None:
        self.watching, self.leftovers = Watching(self.root), Leftovers(self.ledger)
        self.news = News(self.ledger)
        self.outlook, self.shown = self.news.outlook(), self.news.outlook()

    def run(self) -> bool:
        """Adopt or replace what is there, then watch until the end; whether the flow came to it by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)
        try:
            with self.news:
                self._adopt()
                return self._watch()
        finally:
            self._stop_workers()

    def _watch(self) -> bool:
        patience = Patience()
        while not self.told:
            try:
                if self._step():
                    return True
                patience.restore()
            except LedgerError as error:
                self.outlook.forget()
                patience.bear(error)
            self._sleep()
        return False

    def _tell(self, *_: object) -> None:
        self.told = True

    def _adopt(self) -> None:
        """Workers that a predecessor left go on if they run just this; others are told to stop, and replaced.

        What failed is forgotten: whoever runs the flow again has mended what was wrong, or wants to see.
        """
        with self.ledger.read() as tx:
            before = groups.plan_of(tx)
            workers, noted = groups.all_workers(tx), groups.noted_processes(tx)
        setting = {**self.plan, "run": self.spec.recorded((before or {}).get("run"))}
        for worker in noted.keys() - {row.worker for row in workers}:
            self.leftovers.leave(worker, noted[worker])
        changed = before != setting
        if changed:
            self.leftovers.end_all({})
        why = "the flow or its settings have changed" if changed else "it failed before this run"
        for row in (row for row in workers if changed or row.status == FAILED):
            groups.forget_worker(self.ledger, self.generation, row.worker, why)
        wanted = {group["name"]: list(group["stages"]) for group in self.plan["groups"]}
        groups.lay_out(self.ledger, self.generation, setting, wanted)

    def _step(self) -> bool:
        """Look at everything once and do what is to be done; whether the flow has come to its end."""
        # Processes and leases before the ledger: one that has ended in between has said there how it ended.
        looks = {row.worker: self.watching.look(row, self._terms(row.group)) for row in self._read().workers}
        calm = all(look.lives and not look.why_silent for look in looks.values())
        self.silent = {worker for worker, look in looks.items() if look.lives and look.why_silent}
        view = self._read(anew=not calm)
        rows, workers, heads = view.groups, view.workers, view.heads
        seen = {row.worker: self._seen(row, view, looks.get(row.worker, Look(lives=True))) for row in workers}
        for wanted in self.plan["groups"]:
            row = rows[wanted["name"]]
            mine = [worker for worker in workers if worker.group == row.group]
            self._refuse_hopeless(row, mine)
            group = self._group(row, wanted, heads)
            for action in supervision.decide(group, [seen[worker.worker] for worker in mine]):
                self._do(action, row, mine, heads)
        self.leftovers.step()
        if self.options.observe is not None:
            self.options.observe(self.follower.look(self.ledger, self.shown))
        finished = {worker.group for worker in workers if worker.status == FINISHED}
        return finished >= {group["name"] for group in self.plan["groups"]}

    def _read(self, *, anew: bool = False) -> View:
        """What the ledger says, asked again if it has changed, or if it must be newer than what was seen before."""
        if anew or self.view is None or self.outlook.is_due():
            self.outlook.look()
            with self.ledger.read() as tx:
                self.view = View(
                    groups.all_groups(tx), groups.all_workers(tx), groups.heads(tx), standstill.open_plans(tx)
                )
        return self.view

    def _terms(self, group: str) -> Terms:
        return Terms(self.spec.lease_ms, self.starts.get(group, Starts()).setbacks)

    def _seen(self, row: WorkerRow, view: View, look: Look) -> Seen:
        group = view.groups.get(row.group)
        begun = group is not None and _sum(view.heads, group) > -len(group.stages)
        warm = not begun or row.rehearsals >= limits.REHEARSALS_TO_BE_WARM
        accused = look.why_silent or self.leftovers.why(row.worker)
        if not accused and group is not None and group.primary == row.worker and row.status == ACTIVE:
            plans = [view.plans[stage] for stage in group.stages if stage in view.plans]
            accused = self.watching.look_at_plans(row, plans, self._terms(row.group), self._epochs_ms).why
        return Seen(row.worker, row.status, look.lives, accused, row.rehearsals, warm)

    def _epochs_ms(self, stage: str) -> list[float]:
        with self.ledger.read() as tx:
            return standstill.epochs_ms(tx, stage)

    def _group(self, row: GroupRow, wanted: Json, heads: dict[str, int]) -> supervision.Group:
        starts = self.starts.setdefault(row.group, Starts())
        if _sum(heads, row) > starts.heads:
            # It gets things done: earlier failures no longer count, and whoever is missing can be started.
            starts.number, starts.not_before, starts.fill_after, starts.setbacks = 0, 0.0, 0.0, 0
        return supervision.Group(
            row.group,
            row.primary,
            row.members,
            int(wanted["members"]),
            bool(wanted["hot"]),
            time.monotonic() >= starts.not_before and not self._is_starting(),
            row.asked is not None and row.asked == row.primary,
            time.monotonic() >= starts.fill_after,
        )

    def _is_starting(self) -> bool:
        """Whether some worker of the flow is getting ready just now: a start is heavy, so they come one at a time."""
        return any(
            self.watching.is_new(row, limits.START_MS_MAX)
            for row in self._read().workers
            if row.status == STARTING and row.worker not in self.silent
        )

    def _refuse_hopeless(self, row: GroupRow, workers: list[WorkerRow]) -> None:
        """Stop for an error that a new start would only repeat, and for a group that keeps failing."""
        failures = [
            {**worker.failure, "log": str(log_of(self.root, worker.worker))}
            for worker in workers
            if worker.status == FAILED and worker.failure
        ]
        fenced = [one for one in failures if one["kind"] == FencedError.__name__]
        for failure in failures:
            starts = self.starts.get(row.group, Starts())
            if failure not in fenced and (is_hopeless(failure) or starts.number >= limits.STARTS_MAX):
                raise error_of(failure)
        starts = self.starts.get(row.group, Starts())
        if starts.number >= limits.STARTS_MAX and not any(self.watching.lives(worker) for worker in workers):
            raise HoldfastError(
                f"the workers of group {row.group!r} ended {starts.number} times in a row without committing anything",
                operation="supervise",
                hint=f"Their logs are in {self.root / LOGS}. {self._last_words(workers)}",
            )

    def _last_words(self, workers: list[WorkerRow]) -> str:
        logs = [log_of(self.root, worker.worker) for worker in workers]
        lines = [
            line for log in logs[-1:] if log.exists() for line in log.read_text(errors="replace").splitlines()
        ]
        return f"The last one ends with: {lines[-1]}" if lines else ""

    def _do(
        self, action: supervision.Action, row: GroupRow, workers: list[WorkerRow], heads: dict[str, int]
    ) -> None:
        ledger, generation = self.ledger, self.generation
        loser = self._silent_loser(action, workers)
        if loser is not None:
            # One more look; and nobody has to wait for a transaction that it stands in.
            if not self.watching.look(loser, self._terms(loser.group)).why_silent:
                return
            process = process_of(loser, self.watching.watches[loser.worker])
            if process is not None:
                ledger.free(process)
        match action:
            case Promote(group=group, worker=worker, members=members, reason=reason):
                groups.assign(ledger, generation, group, worker, members, reason)
                crashpoints.reach("failover.after_fence")
                later = time.monotonic() + limits.REPAIR_GROUP_AFTER_MS / 1000
                starts = self.starts[group]
                starts.fill_after, starts.heads = later, _sum(heads, row)
                starts.setbacks += row.primary is not None
                self._leave_behind([one for one in workers if one.worker in {*row.members} - {*members}])
            case Admit(group=group, worker=worker):
                groups.admit(ledger, generation, group, worker)
            case Expel(group=group, worker=worker, reason=reason):
                groups.expel(ledger, generation, group, worker, reason)
            case Forget(worker=worker, reason=reason):
                groups.forget_worker(ledger, generation, worker, reason)
                self._leave_behind([one for one in workers if one.worker == worker])
                self.watching.forget(worker)
            case Start(group=group, reason=reason, in_background=in_background):
                self._start(group, reason, _sum(heads, row), in_background)

    def _silent_loser(self, action: supervision.Action, workers: list[WorkerRow]) -> WorkerRow | None:
        """Who is about to lose its place for its silence."""
        match action:
            case Promote(instead_of=str(worker)) | Expel(worker=worker) | Forget(worker=worker):
                return next((row for row in workers if row.worker == worker and worker in self.silent), None)
        return None

    def _leave_behind(self, rows: list[WorkerRow]) -> None:
        for row in rows:
            watch = self.watching.watches.get(row.worker, Watch())
            self.leftovers.leave(row.worker, process_of(row, watch), watch.child)

    def _start(self, group: str, reason: str, heads: int, in_background: bool) -> None:
        starts = self.starts.setdefault(group, Starts())
        starts.number += 1
        pause_ms = min(limits.START_PAUSE_MS * 2 ** (starts.number - 1), limits.START_PAUSE_MS_MAX)
        starts.not_before, starts.heads = time.monotonic() + pause_ms / 1000, heads
        worker = f"{group}-{new_attempt_id()[-8:]}"
        groups.add_worker(self.ledger, self.generation, worker, group, reason)
        spec = replace(self.spec, worker=worker, group=group, in_background=in_background)
        child = self.options.start(self.plan["flow"], spec, self.ledger.environment)
        self.watching.begin(worker, child)
        groups.note_process(self.ledger, worker, Process.here(child.pid))

    def _sleep(self) -> None:
        """Until it is time to look again, or a worker ends."""
        poll = select.poll()
        for fd in self.watching.pidfds():
            poll.register(fd, select.POLLIN)
        poll.poll(limits.WATCH_MS)

    def _stop_workers(self) -> None:
        """Tell every worker to stop, wait, and end those that do not, with all that the flow ever started.

        Once another supervisor has taken over, the workers are its own.
        """
        if holder.supervisor(self.ledger) != self.generation:
            return
        children = {worker: watch.child for worker, watch in self.watching.watches.items() if watch.child}
        for worker, child in children.items():
            self.leftovers.leave(worker, None, child)
        self.leftovers.end_all({worker: Process.here(child.pid) for worker, child in children.items()})
        for worker in list(self.watching.watches):
            self.watching.forget(worker)


def _sum(heads: dict[str, int], row: GroupRow) -> int:
    return sum(heads.get(stage, -1) for stage in row.stages)
