"""One driver of a plain Spark job, which dies where it is told to.

Run as `python -m holdfast.verify.plain.driver SPEC`, with the job's own directory as the current one. The job's file has
two functions: `start(spark, checkpoint, source)` starts the query and returns it, `read()` returns the rows of its sink.

Points, for batches from the second on:

- `offsets`: the offset log has the batch, the sink has nothing of it;
- `sink.entered`, `sink.line:N`, `sink.left`: inside `foreachBatch`, before, at the Nth line that it executes, and after it;
- `sink.files`: a file sink (`start(path)`) has written files of the batch, and its log does not name them yet.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from holdfast.core.errors import FlowImportError
from holdfast.core.python_path import SAFELY
from holdfast.runtime.loader import import_file

_BATCH = 1  # the first has nothing before it that could be lost or repeated
_LOOK_S = 0.001


@dataclass(frozen=True)
class Spec:
    """What a driver is told."""

    job: str
    checkpoint: str
    source: str
    crash: str = ""  # a point, or nothing
    result: str = ""  # where to leave what was observed

    def words(self) -> list[str]:
        """The command line that starts the driver."""
        return [sys.executable, *SAFELY, "-m", "holdfast.verify.plain.driver", json.dumps(asdict(self))]


class _Bomb:
    """Ends the process at its point, and counts the lines of the sink's function when there is none."""

    def __init__(self, spec: Spec) -> None:
        self._point, _, number = spec.crash.partition(":")
        self._line = int(number or 0)
        self._checkpoint = Path(spec.checkpoint)
        self.lines = 0
        self.out: Path | None = None  # where a file sink writes

    def _come_to(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_offsets(self) -> None:
        """Die as soon as the offset log has the batch and the commit log has not."""
        while not (self._checkpoint / "offsets" / str(_BATCH)).exists():
            time.sleep(_LOOK_S)
        self._come_to("offsets")

    def watch_files(self) -> None:
        """Die as soon as a file sink has written something of the batch that its log does not name yet."""
        while self.out is None or not (self._checkpoint / "offsets" / str(_BATCH)).exists():
            time.sleep(_LOOK_S)
        before = set(self.out.glob("part-*"))
        while not set(self.out.glob("part-*")) - before:
            time.sleep(_LOOK_S)
        if not (self.out / "_spark_metadata" / str(_BATCH)).exists():
            self._come_to("sink.files")

    def wrapped(self, function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """The function of `foreachBatch` with points around and inside it."""

        def batch(rows: DataFrame, number: int) -> None:
            if number < _BATCH:
                function(rows, number)
                return
            self._come_to("sink.entered")
            with _Traced(self, function):
                function(rows, number)
            self._come_to("sink.left")

        return batch

    def at_line(self) -> None:
        self.lines += 1
        if self._point == "sink.line" and self.lines == self._line:
            os.kill(os.getpid(), signal.SIGKILL)


class _Traced:
    """Counts the lines that a function's file executes."""

    def __init__(self, bomb: _Bomb, function: Callable[..., object]) -> None:
        self._bomb = bomb
        self._file = getattr(getattr(function, "__code__", None), "co_filename", None)

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            self._bomb.at_line()
        return self._trace


def main(spec: Spec) -> None:
    """Run the job until its input is used up, or die on the way."""
    module = import_file(Path(spec.job))
    bomb = _Bomb(spec)
    _plant(bomb)
    watches = {"offsets": bomb.watch_offsets, "sink.files": bomb.watch_files}
    if spec.crash in watches:
        threading.Thread(target=watches[spec.crash], daemon=True).start()
    spark = SparkSession.builder.appName("plain").config("spark.log.level", "ERROR").getOrCreate()
    query = _function(module, "start")(spark, spec.checkpoint, spec.source)
    query.processAllAvailable()
    query.stop()
    facts = {"lines": bomb.lines, "files": int(bomb.out is not None)}
    Path(spec.result).write_text(json.dumps(facts))
    spark.stop()


def _plant(bomb: _Bomb) -> None:
    """Whatever the job gives to `foreachBatch` gets the points, and where it writes files is known."""
    original, start = DataStreamWriter.foreachBatch, DataStreamWriter.start

    def planted(self: DataStreamWriter, func: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        return original(self, bomb.wrapped(func))

    def started(self: DataStreamWriter, path: str | None = None, *given: Any, **named: Any) -> StreamingQuery:
        bomb.out = Path(path) if path else None
        return start(self, path, *given, **named)

    DataStreamWriter.foreachBatch = planted  # type: ignore[method-assign]
    DataStreamWriter.start = started  # type: ignore[method-assign]


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise FlowImportError(
            f"{module.__file__} has no function {name!r}",
            operation="verify --spark",
            hint="Write start(spark, checkpoint, source), which returns the query, and read(), which returns rows.",
        )
    return found


if __name__ == "__main__":
    main(Spec(**json.loads(sys.argv[1])))
