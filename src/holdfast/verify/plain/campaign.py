"""All runs of a plain Spark job: in peace, then dying at every point, then with a second driver beside it.

Half of the input is there when the job starts, the other half comes when it has been read: so the batch that dies has one
before it. A job whose runs in peace differ is told so, and not crashed. Every driver is a process with a JVM of its own, as in production.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import FlowError, PlanError
from holdfast.core.python_path import SAFELY_VARIABLE, for_tasks
from holdfast.runtime.loader import import_file
from holdfast.verify.actor import Actor
from holdfast.verify.classes import Recovery, Seen, Verdict, judge
from holdfast.verify.outcome import Campaign, Progress, RunOutcome, Timing
from holdfast.verify.plain.driver import Spec

POINTS = ("offsets", "sink.entered", "sink.line", "sink.left", "sink.files", "second")
_LINES_TRIED = 3
_PROMISES = {"exactly_once": Recovery.PRECISE, "at_least_once": Recovery.REPEATING}
POLICY = "spark"


@dataclass(frozen=True)
class Job:
    """A job's file and its input."""

    path: Path
    source: Path

    def files(self) -> list[Path]:
        """The input, in the order of its names."""
        found = sorted(p for p in self.source.iterdir() if p.is_file() and p.name[0] not in "._")
        if len(found) < 2:
            raise PlanError(
                f"{self.source} holds {len(found)} files",
                operation="verify --spark",
                hint="Give it two or more.",
            )
        return found


def verify_job(
    job: Job, root: Path, points: tuple[str, ...] = (), observe: Callable[[Progress], None] = lambda _: None
) -> Campaign:
    """Crash a job at every point, or at some, and say what its sink shows of it."""
    started, progress = time.monotonic(), Progress("running the job in peace")
    observe(progress)
    run = _Run(job, root)
    run.to_the_middle()
    facts = run.finish("")
    expected = run.seen()
    promise = run.promise()
    progress.doing = "running it in peace again"
    observe(progress)
    run.back_to_the_middle()
    run.finish("")
    again = judge(expected, run.seen())
    if again.recovery is not Recovery.PRECISE:
        notes = (f"two runs without failures differ ({again.checked})",)
        return Campaign(job.path.stem, notes, False, (), 0, POINTS, round(time.monotonic() - started, 1))
    planned = [
        point
        for point in _points(facts["lines"], bool(facts["files"]))
        if not points or {point, point.partition(":")[0]} & {*points}
    ]
    progress.total = len(planned)
    for point in planned:
        progress.doing = f"killing it at {point}"
        observe(progress)
        progress.outcomes.append(_played(run, point, expected, promise))
        progress.done += 1
    found = tuple(progress.outcomes)
    return Campaign(job.path.stem, (), True, found, 0, POINTS, round(time.monotonic() - started, 1))


def _points(lines: int, files: bool) -> Iterator[str]:
    yield "offsets"
    if lines:
        yield "sink.entered"
        # Spread over the function's life: where it has done some of its work, and not all.
        yield from (
            f"sink.line:{max(1, lines * n // (_LINES_TRIED + 1))}" for n in range(1, _LINES_TRIED + 1)
        )
        yield "sink.left"
    if files:
        yield "sink.files"
    yield "second"


def _played(run: _Run, point: str, expected: Seen, promise: Recovery) -> RunOutcome:
    started, job = time.monotonic(), run.job
    run.back_to_the_middle()
    verdict: Verdict | None = None
    error = None
    reached, died = True, time.monotonic()
    try:
        reached = run.two_drivers() if point == "second" else run.die(point)
        died = time.monotonic()
        if reached:
            run.finish("")
            verdict = judge(expected, run.seen())
    except FlowError as failure:
        error = failure.message
    words = ["holdfast", "verify", str(job.path), "--spark", "--source", str(job.source), "--points", point]
    name, _, _ = point.partition(":")
    return RunOutcome(
        POLICY,
        "second driver" if point == "second" else "kill",
        name,
        reached,
        promise,
        verdict.recovery if verdict else None,
        (verdict,) if verdict else (),
        Timing(None, None, round(time.monotonic() - died, 2)),
        0,
        shlex.join(words),
        error,
        round(time.monotonic() - started, 2),
    )


class _Run:
    """A job's directory, its checkpoint, and the drivers that come and go.

    All runs live in one directory, one after the other: a checkpoint holds the whole names of the files that were read.
    """

    def __init__(self, job: Job, root: Path) -> None:
        self.job = job
        self._root, self._middle = root / "run", root / "middle"
        for place in (self._root, self._middle):
            shutil.rmtree(place, ignore_errors=True)
        (self._root / "input").mkdir(parents=True)
        checkpoint, source = self._root / "checkpoint", self._root / "input"
        self._spec = Spec(str(job.path.resolve()), str(checkpoint), str(source))

    def to_the_middle(self) -> None:
        """Half of the input is read, the other half is there."""
        files = self.job.files()
        half = len(files) // 2
        self._feed(files[:half])
        self._drive("").check()
        self._feed(files[half:])
        shutil.copytree(self._root, self._middle)

    def back_to_the_middle(self) -> None:
        """As if nothing had happened since."""
        shutil.rmtree(self._root)
        shutil.copytree(self._middle, self._root)

    def die(self, point: str) -> bool:
        """Have a driver die at a point; False if it never came there."""
        return self._drive(point).status == -signal.SIGKILL

    def finish(self, crash: str) -> dict[str, int]:
        """A driver that goes on to the end; what it observed."""
        self._drive(crash).check()
        found: dict[str, int] = json.loads((self._root / "result").read_text())
        return found

    def two_drivers(self) -> bool:
        """Two at once on one checkpoint: whichever fails, the job must not show it."""
        drivers = [self._started("", f"driver-{n}.log") for n in range(2)]
        for driver in drivers:
            _ended(driver)
        return True

    def seen(self) -> Seen:
        """The job's own reader, called in its directory."""

        def act() -> Seen:
            os.chdir(self._root)
            module = import_file(self.job.path)
            rows = module.read()
            table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
            return Seen("sink", table, tuple(getattr(module, "key", ())), getattr(module, "order", None))

        found = Actor(act, self._root / "reader.log").wait().returned()
        assert isinstance(found, Seen)
        return found

    def promise(self) -> Recovery:
        """What the job says of itself: `guarantee = "at_least_once"` in its file expects repetitions."""
        found = Actor(self._promised, self._root / "reader.log").wait().returned()
        assert isinstance(found, Recovery)
        return found

    def _promised(self) -> Recovery:
        given = getattr(import_file(self.job.path), "guarantee", "exactly_once")
        if given not in _PROMISES:
            raise PlanError(
                f"guarantee={given!r} is not one of {', '.join(_PROMISES)}", operation="verify --spark"
            )
        return _PROMISES[given]

    def _feed(self, files: list[Path]) -> None:
        for file in files:
            shutil.copy2(file, self._root / "input" / file.name)

    def _drive(self, crash: str) -> _Driven:
        return _Driven(_ended(self._started(crash, "driver.log")), self._root / "driver.log")

    def _started(self, crash: str, log: str) -> subprocess.Popen[bytes]:
        spec = replace(self._spec, crash=crash, result=str(self._root / "result"))
        with (self._root / log).open("ab") as out:
            # Spark's workers import what the job's functions name from where the job lies.
            path = for_tasks(self.job.path.parent)
            return subprocess.Popen(
                spec.words(),
                cwd=self._root,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    SAFELY_VARIABLE: "1",
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdout=out,
                stderr=subprocess.STDOUT,
            )


def _ended(driver: subprocess.Popen[bytes]) -> int:
    """Wait for a driver; how it ended. One that takes too long is ended, and that is an error."""
    try:
        return driver.wait(limits.VERIFY_RUN_MS_MAX / 1000)
    except subprocess.TimeoutExpired as error:
        driver.kill()
        driver.wait()
        raise FlowError(
            f"a driver did not come to its end in {limits.VERIFY_RUN_MS_MAX / 1000:.0f} s",
            operation="verify --spark",
        ) from error


@dataclass(frozen=True)
class _Driven:
    """How a driver ended."""

    status: int
    log: Path

    def check(self) -> None:
        """Raise if it failed by itself."""
        if self.status != 0:
            raise FlowError(
                f"the job ended with status {self.status}: {self.log.read_text(errors='replace')[-1500:]}",
                operation="verify --spark",
            )
