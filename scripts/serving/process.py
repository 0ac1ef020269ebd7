"""One server process: started apart from this one, known again by its start time, ended for certain.

A pid alone names nothing, since the kernel gives it away again. A process is known by its pid, the time it
started, in ticks since boot, and the boot; nothing else is ever sent a signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serving import place

END_S_MAX = 30  # for a clean end; after that, and as long again, SIGKILL
POLL_S = 0.05


@dataclass(frozen=True)
class Process:
    """A process that was there once, and may still be."""

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        return started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        if self.runs:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def is_gone(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.runs:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def children(self) -> list[Process]:
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        made = ((pid, started(pid)) for pid in pids if parent(pid) == self.pid)
        return [Process(pid, when) for pid, when in made if when]


def fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing if it is not there.

    The name before it is in parentheses and may hold anything, so the last parenthesis counts.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def started(pid: int) -> str | None:
    """When the process started; None for one that has ended, also if nobody has reaped it yet."""
    found = fields(pid)
    if not found or found[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{found[19]}"


def parent(pid: int) -> int | None:
    found = fields(pid)
    return int(found[1]) if found else None


def load(file: Path) -> Process | None:
    """The process that the file names, whether it still runs or not."""
    text = place.read(file)
    if not text:
        return None
    pid, when = text.split()
    return Process(int(pid), when)


def launch(command: list[str], log: Path, file: Path, user: str | None) -> Process:
    """Start a server that outlives this process, and remember it in the file."""
    if log.exists():
        log.replace(log.with_name(log.name + ".old"))
    as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
    with open(log, "wb") as out:
        try:
            child = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, **as_user,
            )  # fmt: skip
        except OSError as error:
            raise place.Unavailable(f"{command[0]} cannot be started: {error}") from None
    made = Process(child.pid, started(child.pid) or "ended")
    place.write(file, f"{made.pid} {made.started}")
    return made


def end(process: Process, politely: signal.Signals | None) -> None:
    """End a process and its children: as it asks to be, if it does so in time, or with SIGKILL."""
    if politely:
        process.send(politely)
        if process.is_gone(END_S_MAX):
            return
    family = [process, *process.children()]
    for member in family:
        member.send(signal.SIGKILL)
    for member in family:
        if not member.is_gone(END_S_MAX):
            raise place.Unavailable(f"process {member.pid} did not end on SIGKILL")
