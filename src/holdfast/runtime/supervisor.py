"""Starts, watches and replaces workers. It imports neither pyspark nor the user's file, and outlives any JVM.

It sees a worker's exit at once, and its silence by the lease; what it does about either is decided by a pure function
(protocols/supervision.py) and done in the ledger first: a successor is named there, and finds out by itself. The
supervisor may die too: workers go on, and the next supervisor adopts those that run what it is told to run.
"""

from __future__ import annotations

import json
import os
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
from holdfast.ledger import groups, holder
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import chosen
from holdfast.ledger.patience import Patience
from holdfast.ledger.process import Process
from holdfast.protocols import lease, supervision
from holdfast.protocols.supervision import FAILED, FINISHED, Admit, Expel, Forget, Promote, Seen, Start
from holdfast.runtime.failure import error_of
from holdfast.runtime.following import Follower
from holdfast.runtime.lease import LEASES, lease_path, read_lease
from holdfast.runtime.news import News, Outlook
from holdfast.runtime.progress import Progress, Report
from holdfast.runtime.supervised import Starts, View, Watch
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.storage import workdir

LOGS = "logs"

# Errors that another start would meet again.
_HOPELESS = ("PlanError", "FlowImportError", "FlowError", "StateSchemaError", "InputError", "SinkError")


@dataclass(frozen=True)
class SupervisorOptions:
    """How a flow is to be supervised."""

    take_over: bool = False
    wait: bool = False
    observe: Callable[[Progress], None] | None = None
    ledger: str | None = field(default=None, repr=False)  # a URL, if it is not to be in the work directory


def planned(flow: str, workers: int | None) -> Json:
    """The plan of a flow, made by a short-lived process."""
    command = [sys.executable, "-m", "holdfast.runtime.describe", flow]
    done = subprocess.run(
        [*command, *([str(workers)] if workers else [])], stdout=subprocess.PIPE, text=True, check=False
    )
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
    ledger = Ledger(root, chosen(root, options.ledger, plan["flow"]))
    try:
        generation = _hold(ledger, plan["flow"], options)
        supervisor = _Supervisor(plan, replace(spec, work_dir=str(root)), options, root, ledger, generation)
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
    watches: dict[str, Watch] = field(default_factory=dict)
    starts: dict[str, Starts] = field(default_factory=dict)
    follower: Follower = field(default_factory=Follower)
    told: bool = False
    news: News = field(init=False)
    outlook: Outlook = field(init=False)
    shown: Outlook = field(init=False)
    view: View | None = None

    def __post_init__(self) -> None:
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
        """Workers that a predecessor left go on if they run just this; others are told to stop, and replaced."""
        setting = {**self.plan, "run": json.loads(replace(self.spec, worker="", group="").to_argument())}
        with self.ledger.read() as tx:
            before = groups.plan_of(tx)
            workers = groups.all_workers(tx)
        if before != setting:
            _end_all([row.process for row in workers if row.process])
            for row in workers:
                groups.forget_worker(
                    self.ledger, self.generation, row.worker, "the flow or its settings have changed"
                )
        wanted = {group["name"]: list(group["stages"]) for group in self.plan["groups"]}
        groups.lay_out(self.ledger, self.generation, setting, wanted)

    def _step(self) -> bool:
        """Look at everything once and do what is to be done; whether the flow has come to its end."""
        # Processes and leases before the ledger: one that has ended in between has said there how it ended.
        looks = {row.worker: self._look(row) for row in self._read().workers}
        calm = all(lives and not silent for lives, silent in looks.values())
        view = self._read(anew=not calm)
        rows, workers, heads = view.groups, view.workers, view.heads
        begun = {row.group: _sum(heads, row) > -len(row.stages) for row in rows.values()}
        seen = {
            row.worker: _seen(row, looks.get(row.worker, (True, False)), begun.get(row.group, False))
            for row in workers
        }
        for wanted in self.plan["groups"]:
            row = rows[wanted["name"]]
            mine = [worker for worker in workers if worker.group == row.group]
            self._refuse_hopeless(row, mine)
            group = self._group(row, wanted, heads)
            for action in supervision.decide(group, [seen[worker.worker] for worker in mine]):
                self._do(action, row, mine, heads)
        if self.options.observe is not None:
            self.options.observe(self.follower.look(self.ledger, self.shown))
        finished = {worker.group for worker in workers if worker.status == FINISHED}
        return finished >= {group["name"] for group in self.plan["groups"]}

    def _read(self, *, anew: bool = False) -> View:
        """What the ledger says, asked again if it has changed, or if it must be newer than what was seen before."""
        if anew or self.view is None or self.outlook.is_due():
            self.outlook.look()
            with self.ledger.read() as tx:
                self.view = View(groups.all_groups(tx), groups.all_workers(tx), groups.heads(tx))
        return self.view

    def _group(self, row: GroupRow, wanted: Json, heads: dict[str, int]) -> supervision.Group:
        starts = self.starts.setdefault(row.group, Starts())
        if _sum(heads, row) > starts.heads:
            # It gets things done: earlier failures no longer count, and whoever is missing can be started.
            starts.number, starts.not_before, starts.fill_after = 0, 0.0, 0.0
        return supervision.Group(
            row.group,
            row.primary,
            row.members,
            int(wanted["members"]),
            bool(wanted["hot"]),
            time.monotonic() >= starts.not_before,
            row.asked is not None and row.asked == row.primary,
            time.monotonic() >= starts.fill_after,
        )

    def _look(self, row: WorkerRow) -> tuple[bool, bool]:
        """Whether a worker's process lives, and whether it is silent."""
        now_ms = int(time.monotonic() * 1000)
        watch = self.watches.setdefault(row.worker, Watch())
        counter = read_lease(self.root, row.worker)
        first_ms = watch.first_ms = watch.first_ms or now_ms
        watch.sighting = lease.look(watch.sighting, counter, now_ms, limits.LEASE_LOOK_MS_MAX)
        never = watch.sighting.counter == 0 and now_ms - first_ms >= limits.FIRST_LEASE_MS_MAX
        return self._lives(row, watch), never or watch.sighting.silent_ms() >= limits.LEASE_MS_MAX

    def _lives(self, row: WorkerRow, watch: Watch) -> bool:
        if watch.child is not None:
            return watch.child.poll() is None
        if row.process is None:
            return False
        if watch.pidfd is None and row.process.is_here and row.process.lives():
            watch.pidfd = os.pidfd_open(row.process.pid)
        return row.process.lives()

    def _refuse_hopeless(self, row: GroupRow, workers: list[WorkerRow]) -> None:
        """Stop for an error that a new start would only repeat, and for a group that keeps failing."""
        failures = [worker.failure for worker in workers if worker.status == FAILED and worker.failure]
        fenced = [one for one in failures if one["kind"] == FencedError.__name__]
        for failure in failures:
            starts = self.starts.get(row.group, Starts())
            hopeless = failure["kind"] in _HOPELESS and not failure.get("heals")
            if failure not in fenced and (hopeless or starts.number >= limits.STARTS_MAX):
                raise error_of(failure)
        starts = self.starts.get(row.group, Starts())
        if starts.number >= limits.STARTS_MAX and not any(
            self._lives(w, self.watches[w.worker]) for w in workers
        ):
            raise HoldfastError(
                f"the workers of group {row.group!r} ended {starts.number} times in a row without committing anything",
                operation="supervise",
                hint=f"Their logs are in {self.root / LOGS}. {self._last_words(workers)}",
            )

    def _last_words(self, workers: list[WorkerRow]) -> str:
        logs = [self.root / LOGS / f"{worker.worker}.log" for worker in workers]
        lines = [
            line for log in logs[-1:] if log.exists() for line in log.read_text(errors="replace").splitlines()
        ]
        return f"The last one ends with: {lines[-1]}" if lines else ""

    def _do(
        self, action: supervision.Action, row: GroupRow, workers: list[WorkerRow], heads: dict[str, int]
    ) -> None:
        ledger, generation = self.ledger, self.generation
        match action:
            case Promote(group=group, worker=worker, members=members, reason=reason):
                self._promote(row, workers, worker, members, reason)
                later = time.monotonic() + limits.REPAIR_GROUP_AFTER_MS / 1000
                self.starts[group].fill_after, self.starts[group].heads = later, _sum(heads, row)
            case Admit(group=group, worker=worker):
                groups.admit(ledger, generation, group, worker)
            case Expel(group=group, worker=worker, reason=reason):
                groups.expel(ledger, generation, group, worker, reason)
            case Forget(worker=worker, reason=reason):
                groups.forget_worker(ledger, generation, worker, reason)
                self._unwatch(worker)
            case Start(group=group, reason=reason):
                self._start(group, reason, _sum(heads, row))

    def _promote(
        self, row: GroupRow, workers: list[WorkerRow], worker: str, members: tuple[str, ...], reason: str
    ) -> None:
        try:
            groups.assign(self.ledger, self.generation, row.group, worker, members, reason)
        except LedgerError as error:
            # A worker that hangs inside a transaction keeps everybody out until something is ended.
            hung = [w.process for w in workers if w.process and w.worker == row.primary]
            if not error.heals or not self.ledger.free(hung):
                raise
            groups.assign(self.ledger, self.generation, row.group, worker, members, reason)
        crashpoints.reach("failover.after_fence")

    def _start(self, group: str, reason: str, heads: int) -> None:
        starts = self.starts.setdefault(group, Starts())
        starts.number += 1
        pause_ms = min(limits.START_PAUSE_MS * 2 ** (starts.number - 1), limits.START_PAUSE_MS_MAX)
        starts.not_before, starts.heads = time.monotonic() + pause_ms / 1000, heads
        worker = f"{group}-{new_attempt_id()[-8:]}"
        groups.add_worker(self.ledger, self.generation, worker, group, reason)
        (self.root / LOGS).mkdir(exist_ok=True)
        (self.root / LEASES).mkdir(exist_ok=True)
        spec = replace(self.spec, worker=worker, group=group)
        with (self.root / LOGS / f"{worker}.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "holdfast.runtime.process", spec.to_argument()],
                env={**os.environ, **self.ledger.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.watches[worker] = Watch(child, os.pidfd_open(child.pid))

    def _sleep(self) -> None:
        """Until it is time to look again, or a worker ends."""
        fds = [
            watch.pidfd for watch in self.watches.values() if watch.pidfd is not None and not _ended(watch)
        ]
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        poll.poll(limits.WATCH_MS)

    def _unwatch(self, worker: str) -> None:
        watch = self.watches.pop(worker, Watch())
        if watch.pidfd is not None:
            os.close(watch.pidfd)
        lease_path(self.root, worker).unlink(missing_ok=True)

    def _stop_workers(self) -> None:
        """Tell every worker to stop, wait, and end those that do not."""
        with self.ledger.read() as tx:
            found = [row.process for row in groups.all_workers(tx) if row.process]
        children = [watch.child for watch in self.watches.values() if watch.child]
        for child in children:
            if child.poll() is None:
                child.terminate()
        for process in found:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + limits.STOP_MS_MAX / 1000
        while time.monotonic() < deadline:
            if all(child.poll() is not None for child in children) and not any(p.lives() for p in found):
                break
            time.sleep(limits.WATCH_MS / 1000)
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        _end_all(found)
        for worker in list(self.watches):
            self._unwatch(worker)


def _seen(row: WorkerRow, look: tuple[bool, bool], begun: bool) -> Seen:
    warm = not begun or row.rehearsals >= limits.REHEARSALS_TO_BE_WARM
    return Seen(row.worker, row.status, *look, row.rehearsals, warm)


def _ended(watch: Watch) -> bool:
    return watch.child is not None and watch.child.returncode is not None


def _sum(heads: dict[str, int], row: GroupRow) -> int:
    return sum(heads.get(stage, -1) for stage in row.stages)


def _end_all(processes: list[Process]) -> None:
    for process in processes:
        process.end()
