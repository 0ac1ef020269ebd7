"""A small stream of epochs for the sink tests, what a reader should see, and a process that feeds a sink.

As a program: `feeding.py KIND TARGET GENERATION SEGMENTS`. It prints `fenced` if it was refused.
`STOP_AT=POINT` makes it stop itself (SIGSTOP) at the crash point of that name, the first time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core import crashpoints
from holdfast.core.errors import FencedError
from holdfast.sinks.contract import Sink, SinkRecord
from unit.sinks.kinds import KINDS, SCHEMA

FLOW = "orders"
# The values of each epoch's segments. Epochs 1 and 3 have no rows: one has an empty segment, one has none.
VALUES = [[[0, 1], [2]], [[]], [[20, 21], [], [22]], [], [[40], [41, 42]]]
EPOCHS = len(VALUES)


def record(
    epoch: int, generation: int = 1, branch: int = 0, revision: int = 0, flow: str = FLOW
) -> SinkRecord:
    return SinkRecord(flow, branch, epoch, revision, generation)


def rows(values: list[int]) -> pa.Table:
    return pa.table([values, [f"n{value}" for value in values]], schema=SCHEMA)


def write_segments(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for epoch, parts in enumerate(VALUES):
        for number, values in enumerate(parts):
            pq.write_table(rows(values), directory / f"{epoch}-{number}.parquet", compression="zstd")
    return directory


def segments(directory: Path, epoch: int) -> list[Path]:
    return [directory / f"{epoch}-{number}.parquet" for number in range(len(VALUES[epoch]))]


def feed(sink: Sink, directory: Path, generation: int, until: int = EPOCHS) -> SinkRecord | None:
    """Open the sink and publish what it does not have; say what it had."""
    last = sink.open(FLOW, 0, generation)
    publish_after(sink, last, directory, generation, until)
    return last


def publish_after(
    sink: Sink, last: SinkRecord | None, directory: Path, generation: int, until: int = EPOCHS
) -> None:
    for epoch in range(last.epoch + 1 if last else 0, until):
        sink.publish(record(epoch, generation), segments(directory, epoch))


def expected(until: int = EPOCHS) -> list[int]:
    return sorted(value for parts in VALUES[:until] for part in parts for value in part)


def _stop_at(point: str) -> None:
    stopped = []

    def reach(reached: str) -> None:
        if reached == point and not stopped:
            stopped.append(point)
            os.kill(os.getpid(), signal.SIGSTOP)

    crashpoints.reach = reach


def main() -> None:
    kind, target, generation, directory = sys.argv[1:]
    if point := os.environ.get("STOP_AT"):
        _stop_at(point)
    try:
        feed(KINDS[kind].sink(Path(target)), Path(directory), int(generation))
    except FencedError as error:
        print("fenced", error)


if __name__ == "__main__":
    main()
