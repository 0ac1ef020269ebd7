"""A process that feeds a sink with the small stream of epochs of `holdfast.testing`.

As a program: `feeding.py KIND TARGET GENERATION SEGMENTS`. It prints `fenced` if it was refused.
`STOP_AT=POINT` makes it stop itself (SIGSTOP) at the crash point of that name, the first time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast.core import crashpoints
from holdfast.core.errors import FencedError
from holdfast.testing.epochs import feed
from unit.sinks.kinds import KINDS


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
