"""A worker: one process, one SparkSession, and a loop for every stage, sink and chore of a group of stages.

A worker that leads its group has everything: it recovers what a predecessor left, fences the sinks, and runs the loops
until told to stop. One that follows computes the epochs of the stages with hot standbys, and races to commit them; it
leads as soon as the ledger says so. An error in any loop stops all of them and is raised; nothing is logged and passed
over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession

from holdfast.core import limits
from holdfast.core.errors import FencedError, HoldfastError, LedgerError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.placement import MAIN
from holdfast.flow.policies import Standby
from holdfast.ledger import epochs, groups, holder
from holdfast.ledger.lag import standings
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import chosen
from holdfast.ledger.patience import Patience
from holdfast.ledger.process import Process
from holdfast.runtime.binding import bound, register, resume_progress
from holdfast.runtime.context import Runtime
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.discovery import Discovery
from holdfast.runtime.early import ready
from holdfast.runtime.loops import Loop, Loops, cut_short
from holdfast.runtime.passing import check_all_read
from holdfast.runtime.planning import has_work, is_behind
from holdfast.runtime.postponed import Postponed
from holdfast.runtime.progress import Progress, Report
from holdfast.runtime.recovery import recover
from holdfast.runtime.repair import repair
from holdfast.runtime.script import UNSCRIPTED, Script
from holdfast.runtime.sink_loop import SinkLoop
from holdfast.runtime.stage_loop import loop_of
from holdfast.runtime.upkeep import Upkeep
from holdfast.sinks.make import make_sink
from holdfast.spark.session import epoch_settings, make_session
from holdfast.storage import workdir
from holdfast.storage.sweeper import sweep_strays


@dataclass(frozen=True)
class RunOptions:
    """How a flow is to be run."""

    until_idle: bool = False
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    spark: SparkSession | None = None
    take_over: bool = False
    wait: bool = False
    tasks: int | None = None
    hash_bits: int = 64
    drain: bool = False
    observe: Callable[[Progress], None] | None = None
    direct: bool = True
    script: Script = UNSCRIPTED
    ledger: str | None = field(default=None, repr=False)  # a URL, if it is not to be in the work directory


def run(plan: FlowPlan, work_dir: str | Path, options: RunOptions) -> Report:
    """Run a flow in this process alone until it is idle, stopped or fails."""
    root = workdir.prepare(work_dir)
    ledger = Ledger(root, chosen(root, options.ledger, plan.name))
    try:
        generation = _take(ledger, plan.name, options)
        with ExitStack() as stack:
            stack.callback(_release, ledger, generation)
            plan = ready(plan, ledger)
            spark = stack.enter_context(session(plan, options))
            name = holder.worker_name(Process.myself(), generation)
            rt = bind_flow(plan.alone(), root, ledger, spark, options, name, MAIN)
            rt.generation = generation
            stack.enter_context(fenced_first(rt))
            stack.enter_context(rt.news)
            worker = Worker(rt, options)
            worker.run()
            return worker.report()
    finally:
        ledger.close()


@contextmanager
def session(plan: FlowPlan, options: RunOptions) -> Iterator[SparkSession]:
    """The caller's session, or one of our own for as long as it is needed, with the settings of epochs."""
    spark = options.spark or make_session(plan.name, options.master, options.conf)
    try:
        with epoch_settings(spark):
            yield spark
    finally:
        if options.spark is None:
            spark.stop()


def _take(ledger: Ledger, name: str, options: RunOptions) -> int:
    while True:
        try:
            return holder.take(ledger, name, by_force=options.take_over)
        except LedgerError as error:
            if not (options.wait and error.operation == "take"):
                raise
            time.sleep(limits.POLL_MS / 1000)


def _release(ledger: Ledger, generation: int) -> None:
    """A deposed process has nothing left to release."""
    try:
        holder.release(ledger, generation)
    except FencedError:
        return


@contextmanager
def fenced_first(rt: Runtime) -> Iterator[None]:
    """A deposed process may stumble over files that its successor removed: it is told why, not over what."""
    try:
        yield
    except FencedError:
        raise
    except Exception as error:
        try:
            rt.ledger.refuse_deposed(rt.generation)
        except FencedError as fenced:
            raise fenced from error
        raise


def bind_flow(
    plan: FlowPlan,
    root: Path,
    ledger: Ledger,
    spark: SparkSession,
    options: RunOptions,
    worker: str,
    group: str,
) -> Runtime:
    """The flow bound to types and to a session, as the options say, without any right to change anything yet."""
    rt = bound(
        plan,
        root,
        ledger,
        spark,
        worker,
        group,
        tasks=options.tasks,
        hash_bits=options.hash_bits,
        direct=options.direct,
        script=options.script,
    )
    rt.owns_session = options.spark is None
    return rt


class Worker:
    """The loops of one run."""

    def __init__(self, rt: Runtime, options: RunOptions, told: Event | None = None) -> None:
        self._rt = rt
        self._options = options
        self._told = told or Event()  # to stop: epochs that are almost done are finished, no new ones begin
        self._outlook = rt.news.outlook()
        self._is_primary = False  # as the ledger says; it leads when it has done what leading begins with
        self._busy_at: int | None = None  # the newest news with which the flow was not idle yet
        self._measured = rt.news.outlook()
        self._measure_at = 0.0
        self._look_at = 0.0
        self._discovery = Discovery(rt)
        self._upkeep = Upkeep(rt, self._discovery)
        self._leading: Postponed | None = None  # since it is the primary, until it leads
        self._coordinator = Coordinator(rt, options.until_idle)
        self._loops = Loops(rt)
        self._sinks = [
            SinkLoop(
                rt, spec, make_sink(spec, rt.stages[spec.stage].port_schema(spec.port), rt.spark, rt.ledger)
            )
            for spec in rt.own_sinks
        ]

    @property
    def leads(self) -> bool:
        """Whether it drives the whole group, or only follows."""
        return self._rt.leads

    def run(self, *, lead: bool = True) -> None:
        """Lead, or follow until there is cause to lead; stop the loops; make everything durable."""
        try:
            if lead:
                self._lead()
            self._wait()
            self._finish_epochs()
        finally:
            self._loops.stop()
            self._discovery.end()
            if self._rt.leads:
                for sink in self._sinks:
                    sink.close()
        if self._loops.failures:
            raise self._loops.failures[0]
        if self._rt.leads:
            self._rt.surviving(self._upkeep.ship)
            self._rt.surviving(self._upkeep.sweep)

    def report(self) -> Report:
        """What the run did."""
        self._measure()
        progress = self._rt.progress
        seconds = time.monotonic() - progress.started
        return Report(self._rt.plan.name, self._rt.generation, seconds, progress.stages, progress.sinks)

    def _lead(self) -> None:
        """Whatever a crash, a power cut or a hand has done to the files is found and mended before any work."""
        rt = self._rt
        with cut_short(rt, self._told):
            rt.surviving(lambda: register(rt))
            sweep_strays(rt.ledger, rt.root, rt.own)
            self._discovery.begin()
            rt.surviving(lambda: recover(rt))
            resume_progress(rt)
            rt.surviving(lambda: repair(rt))
            for sink in self._sinks:
                rt.surviving(sink.open)
        if rt.stopping.is_set():
            return
        rt.leads = True
        self._loops.start(self._work_loops())
        self._upkeep.await_an_epoch()

    def _hot_loops(self) -> list[Loop]:
        """What a follower computes too."""
        hot = [stage for stage in self._rt.own_stages if stage.spec.policy.standby is Standby.HOT]
        return [loop_of(self._rt, stage) for stage in hot]

    def _work_loops(self) -> list[Loop]:
        """What brings rows to the sinks."""
        rt = self._rt
        return [
            *(loop_of(rt, stage) for stage in rt.own_stages),
            *(
                Loop(f"sink {spec.name}", loop.step)
                for spec, loop in zip(rt.own_sinks, self._sinks, strict=True)
            ),
            *([Loop("snapshot", self._coordinator.step, by_news=False)] if self._coordinator else ()),
            Loop("discover", self._discovery.step, urgent=False, by_news=False),
        ]

    def _wait(self) -> None:
        patience = Patience()
        try:
            while not self._rt.stopping.wait(limits.WATCH_MS / 1000):
                try:
                    if self._told.is_set() or not self._still_a_member() or self._is_done():
                        return
                    patience.restore()
                except LedgerError as error:
                    self._outlook.forget()
                    patience.bear(error)
                if self._is_primary and not self._rt.leads and self._is_to_lead():
                    self._lead()
                if self._upkeep.is_to_begin():
                    self._loops.start(self._upkeep.loops())
        except HoldfastError as error:
            self._loops.failed(error)

    def _is_to_lead(self) -> bool:
        """A hot standby finishes the epoch that it has under way first: the flow waits for that one."""
        self._leading = self._leading or Postponed(self._rt.progress, limits.LEAD_AFTER_MS)
        return not self._rt.computing or self._leading.is_over()

    def _finish_epochs(self) -> None:
        """Told to stop: let what is almost done be committed and published; the next run has the rest."""
        rt = self._rt
        if not self._told.is_set() or not self._rt.leads:
            return
        rt.closing.set()
        again = all(rt.plan.sources[name].rereadable for name in rt.own_sources)
        bound_ms = limits.FINISH_MS_MAX if again else limits.FINISH_ONCE_ONLY_MS_MAX
        deadline = time.monotonic() + bound_ms / 1000
        while not rt.stopping.is_set() and time.monotonic() < deadline:
            if not self._under_way():
                return
            time.sleep(limits.WATCH_MS / 1000)

    def _under_way(self) -> bool:
        """Whether a job of an epoch runs, or a sink lags behind the commits."""
        rt = self._rt
        if rt.computing:
            return True
        with rt.ledger.read() as tx:
            return any(is_behind(tx, sink) for sink in rt.own_sinks)

    def _still_a_member(self) -> bool:
        """Keep up with the group: its generation, and who leads it. False once its primary has stopped cleanly."""
        rt = self._rt
        if not self._outlook.is_due():
            return True
        self._outlook.look()
        with rt.ledger.read() as tx:
            row = groups.group_row(tx, rt.group)
            registered = epochs.all_registered(tx, rt.own)
        if row is None or (row.members and rt.worker not in row.members):
            rt.ledger.refuse_deposed(rt.generation)
        if row is None or rt.worker not in row.members:
            return False
        rt.generation = row.generation
        self._is_primary = row.primary == rt.worker
        if not self._is_primary and not rt.leads and not self._loops and registered:
            self._loops.start(self._hot_loops())
        return True

    def _is_done(self) -> bool:
        """Whether the flow is idle, and was to run only until then; shows the run to whoever watches it."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + limits.POLL_MS / 1000
        self._observed()
        if not (self._rt.leads and self._options.until_idle and self._idle()):
            return False
        if not self._options.drain or self._rt.draining.is_set():
            return True
        self._rt.draining.set()
        self._rt.alarm.ring()
        return False

    def _observed(self) -> None:
        """Show the run to whoever watches it."""
        if self._options.observe is None:
            return
        if time.monotonic() >= self._measure_at and self._measured.is_due():
            self._measured.look()
            self._measure()
            self._measure_at = time.monotonic() + limits.MEASURE_EVERY_MS / 1000
        self._options.observe(self._rt.progress)

    def _measure(self) -> None:
        with self._rt.ledger.read() as tx:
            found = standings(tx)
        self._rt.progress.measured({name: found[name] for name in self._rt.own if name in found})

    def _idle(self) -> bool:
        """Nothing new at the sources, no plan open or to be made, every sink up to date, in all of the flow; no merge due.

        A run that left its merges undone would, started every minute, never come to them.
        """
        rt = self._rt
        if self._discovery.step() or not self._discovery.is_complete():
            return False
        if rt.ticks.take_at_once():
            rt.alarm.ring()
        news = rt.news.version
        if news is not None and news == self._busy_at:
            return False
        self._busy_at = news
        if not self._settled():
            return False
        self._busy_at = None
        return True

    def _settled(self) -> bool:
        """Whether the ledger holds nothing that is still to be done."""
        rt = self._rt
        with rt.ledger.read() as tx:
            if not epochs.all_registered(tx, list(rt.stages)):
                return False
            if any(has_work(rt, tx, stage) for stage in rt.stages.values()):
                return False
            if any(is_behind(tx, sink) for sink in rt.plan.sinks) or self._coordinator.has_work(tx):
                return False
            check_all_read(rt, tx)
            return not self._upkeep.merger.has_work(tx)
