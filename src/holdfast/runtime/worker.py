"""A worker: one process, one SparkSession, and a loop for every stage, sink and chore of a flow.

Life of a worker: take the flow (raising its generation), bind the stages to types, check the files that the
ledger names and repair what is lost, fence the sinks, run the loops until told to stop, make everything
durable, let go. An error in any loop stops all of them and is raised; nothing is logged and passed over.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from pyspark.sql import SparkSession

from holdfast.core import crashpoints, limits
from holdfast.core.errors import FencedError, HoldfastError, LedgerError
from holdfast.flow import endpoints
from holdfast.flow.endpoints import SinkDescription, SourceDescription
from holdfast.flow.planner import FlowPlan
from holdfast.ledger import epochs, holder, stages
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.context import Runtime
from holdfast.runtime.merger import Merger
from holdfast.runtime.planning import next_plan
from holdfast.runtime.progress import Progress, Report
from holdfast.runtime.repair import repair
from holdfast.runtime.sink_loop import SinkLoop
from holdfast.runtime.stage_loop import StageLoop
from holdfast.sinks.contract import Sink
from holdfast.sinks.discard import DiscardSink
from holdfast.sinks.parquet import ParquetSink
from holdfast.sources.contract import Source
from holdfast.sources.files import Files
from holdfast.sources.rows import Rows
from holdfast.spark.bind import bind
from holdfast.spark.session import epoch_settings, make_session
from holdfast.storage import workdir
from holdfast.storage.shipper import ship
from holdfast.storage.sweeper import sweep, sweep_strays


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


def run(plan: FlowPlan, work_dir: str | Path, options: RunOptions) -> Report:
    """Run a flow in this process until it is idle, stopped or fails."""
    root = workdir.prepare(work_dir)
    ledger = Ledger(root)
    try:
        generation = _take(ledger, plan.name, options)
        with ExitStack() as stack:
            stack.callback(_release, ledger, generation)
            spark = options.spark or make_session(plan.name, options.master, options.conf)
            if options.spark is None:
                stack.callback(spark.stop)
            stack.enter_context(epoch_settings(spark))
            stack.enter_context(_fenced_first(ledger, generation))
            worker = _Worker(_prepare(plan, root, ledger, generation, spark, options), options)
            worker.run()
            return worker.report()
    finally:
        ledger.close()


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
def _fenced_first(ledger: Ledger, generation: int) -> Iterator[None]:
    """A deposed process may stumble over files that its successor removed: it is told why, not over what."""
    try:
        yield
    except FencedError:
        raise
    except Exception as error:
        try:
            ledger.refuse_deposed(generation)
        except FencedError as fenced:
            raise fenced from error
        raise


def _prepare(
    plan: FlowPlan, root: Path, ledger: Ledger, generation: int, spark: SparkSession, options: RunOptions
) -> Runtime:
    sources = {name: _source(name, description) for name, description in plan.sources.items()}
    bound = bind(spark, plan, {name: source.schema() for name, source in sources.items()}, options.hash_bits)
    for stage in bound:
        schema = stage.operator.description if stage.operator else None
        stages.register(ledger, generation, stage.name, schema, [origin.id for origin in stage.spec.inputs])
    with ledger.write(generation) as tx:
        for sink in plan.sinks:
            start = epochs.stage_row(tx, sink.stage).head + 1
            stages.add_cursor(tx, f"sink:{sink.name}", sink.input.id, start)
    tasks = options.tasks or _cores(spark)
    named = {stage.name: stage for stage in bound}
    return Runtime(plan, named, sources, spark, ledger, root, generation, tasks, Progress())


def _source(name: str, description: SourceDescription) -> Source:
    return (
        Files(name, description)
        if isinstance(description, endpoints.FilesSource)
        else Rows(name, description)
    )


def _sink(description: SinkDescription) -> Sink:
    if isinstance(description, endpoints.ParquetSink):
        return ParquetSink(description.path, description.single_file)
    return DiscardSink()


def _cores(spark: SparkSession) -> int:
    """Tasks that run at the same time: as many as a local master has cores, else Spark's own setting."""
    master = spark.conf.get("spark.master", "") or ""
    local = re.match(r"local\[(\*|\d+)", master)
    if local:
        return (os.cpu_count() or 1) if local.group(1) == "*" else int(local.group(1))
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


class _Worker:
    """The loops of one run."""

    def __init__(self, rt: Runtime, options: RunOptions) -> None:
        self._rt = rt
        self._options = options
        self._failures: list[BaseException] = []
        self._known = {name: self._identities(name) for name in rt.sources}
        self._sinks = [SinkLoop(rt, spec, _sink(spec.description)) for spec in rt.plan.sinks]

    def run(self) -> None:
        """Recover, run the loops, stop them, make everything durable."""
        self._recover()
        threads = self._threads()
        try:
            for sink in self._sinks:
                sink.open()
            for thread in threads:
                thread.start()
            self._wait()
        finally:
            self._stop(threads)
            for sink in self._sinks:
                sink.close()
        if self._failures:
            raise self._failures[0]
        self._ship()
        self._sweep()

    def report(self) -> Report:
        """What the run did."""
        progress = self._rt.progress
        seconds = time.monotonic() - progress.started
        return Report(self._rt.plan.name, self._rt.generation, seconds, progress.stages, progress.sinks)

    def _recover(self) -> None:
        """Whatever a crash, a power cut or a hand has done to the files is found and mended before any work."""
        rt = self._rt
        sweep_strays(rt.ledger, rt.root)
        repair(rt)
        self._ship()

    def _loops(self) -> list[tuple[str, Callable[[], bool]]]:
        rt = self._rt
        return [
            *((f"stage {name}", StageLoop(rt, stage).step) for name, stage in rt.stages.items()),
            *(
                (f"sink {spec.name}", loop.step)
                for spec, loop in zip(rt.plan.sinks, self._sinks, strict=True)
            ),
            ("merge", Merger(rt).step),
            ("ship", self._ship),
        ]

    def _chores(self) -> list[tuple[str, Callable[[], bool], float]]:
        """What runs from time to time; a commit does not make it more urgent."""
        return [
            ("discover", self._discover, limits.POLL_MS / 1000),
            ("sweep", self._sweep, limits.SWEEP_EVERY_MS / 1000),
        ]

    def _threads(self) -> list[Thread]:
        rt, rest = self._rt, limits.POLL_MS / 1000
        driven = [(name, step, rest, rt.alarm.join()) for name, step in self._loops()]
        driven += [(name, step, every, rt.stopping) for name, step, every in self._chores()]
        return [Thread(target=self._drive, args=args, name=args[0]) for args in driven]

    def _drive(self, name: str, step: Callable[[], bool], rest: float, bell: Event) -> None:
        """Step on and on; after a step without work, rest until the bell rings. An error stops all loops."""
        rt = self._rt
        try:
            while not rt.stopping.is_set():
                if bell is not rt.stopping:
                    bell.clear()
                if not step():
                    bell.wait(rest)
        except BaseException as error:
            if not (rt.stopping.is_set() and isinstance(error, HoldfastError)):
                self._failures.append(error)
            rt.stopping.set()
            rt.alarm.ring()

    def _wait(self) -> None:
        while not self._rt.stopping.wait(limits.POLL_MS / 1000):
            if self._options.observe:
                self._options.observe(self._rt.progress)
            if self._options.until_idle and self._idle():
                if not self._options.drain or self._rt.draining.is_set():
                    return
                self._rt.draining.set()
                self._rt.alarm.ring()

    def _stop(self, threads: list[Thread]) -> None:
        rt = self._rt
        rt.stopping.set()
        rt.alarm.ring()
        for thread in threads:
            while thread.ident and thread.is_alive():
                rt.interrupt_jobs()
                thread.join(limits.POLL_MS / 1000)

    def _idle(self) -> bool:
        """Nothing new at the sources, no plan open or to be made, every sink up to date."""
        rt = self._rt
        if self._discover():
            return False
        with rt.ledger.read() as tx:
            for name, stage in rt.stages.items():
                row = epochs.stage_row(tx, name)
                if epochs.open_plan(tx, row) is not None or next_plan(rt, tx, stage, row) is not None:
                    return False
            return all(
                ledger_inputs.processed(tx, f"sink:{sink.name}", sink.input.id)
                > epochs.stage_row(tx, sink.stage).head
                for sink in rt.plan.sinks
            )

    def _discover(self) -> bool:
        """Write down what is new at the sources; whether anything was.

        All sources are looked at before the loops are told of any, so that a stage with several takes of each.
        """
        rt = self._rt
        found = {name: source.discover(self._known[name]) for name, source in rt.sources.items()}
        new = {name: items for name, items in found.items() if items}
        for name, items in new.items():
            ledger_inputs.add_items(rt.ledger, rt.generation, name, items)
            self._known[name].update(item.identity for item in items)
            rt.heard[name] = time.monotonic()
            crashpoints.reach("discover.after")
        if new:
            rt.alarm.ring()
        return bool(new)

    def _identities(self, source: str) -> set[str]:
        with self._rt.ledger.read() as tx:
            return ledger_inputs.known_identities(tx, source)

    def _ship(self) -> bool:
        rt = self._rt
        if not rt.durable:
            return False
        return any([ship(rt.ledger, rt.root, name, rt.generation) for name in rt.stages])

    def _sweep(self) -> bool:
        rt = self._rt
        for name in rt.stages:
            consumers = rt.plan.consumers(name)
            sweep(
                rt.ledger, rt.root, name, rt.generation, consumers, durable=rt.durable, pinned=rt.pins.held()
            )
        return False
