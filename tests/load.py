"""A machine that has other work to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BURN = "while True: sum(range(10000))"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that always want a CPU. Each has a session of its own: the kernel may share CPUs by session."""
    started = [
        subprocess.Popen([sys.executable, "-c", BURN], start_new_session=True) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def be_nice() -> None:
    """In a child before it begins: come after everybody else, also where the kernel shares CPUs by session."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
