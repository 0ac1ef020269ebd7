"""What every service can do: start, stop, be killed, be removed. One subclass per server."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

from serving import place, process
from serving.place import Unavailable

LOG_LINES_SHOWN = 20
POLL_S = 0.1


class Service:
    """A server with a directory of its own. Nothing here is safe without `place.locked`, but to look."""

    name: str
    variable: str  # the environment variable that names it to tests
    ready_s_max: float  # generous: two slow cores may be busy with something else
    polite_end: signal.Signals
    user: str | None = None  # the user that the server runs as, if not this one

    def __init__(self, home: Path) -> None:
        self.home = home / self.name
        self.log = self.home / "log"

    def prepare(self, port: int) -> list[str]:
        """Get the programs and the data directory; return the command that serves on the port."""
        raise NotImplementedError

    def address(self, port: int) -> str:
        """What a client connects to."""
        raise NotImplementedError

    def answers(self, port: int) -> bool:
        """Whether a request gets its answer."""
        raise NotImplementedError

    @property
    def running(self) -> process.Process | None:
        known = process.load(self.home / "process")
        return known if known and known.runs else None

    @property
    def port(self) -> int:
        return int(place.read(self.home / "port") or 0)

    def launch(self) -> None:
        """Start the server unless it runs; `wait` says whether it came up."""
        if self.running:
            return
        self.home.mkdir(parents=True, exist_ok=True)
        port = place.port(self.home / "port")
        command = self.prepare(port)
        place.write(self.home / "address", self.address(port))
        process.launch(command, self.log, self.home / "process", self.user)

    def wait(self) -> None:
        """Wait until the server answers. One that does not is ended, so that the next start begins anew."""
        deadline = time.monotonic() + self.ready_s_max
        while not self.answers(self.port):
            if not self.running:
                self.show_log()
                raise Unavailable(f"it ended while it started; see {self.log}")
            if time.monotonic() > deadline:
                self.show_log()
                self.kill()
                raise Unavailable(f"it did not answer within {self.ready_s_max:.0f} s; see {self.log}")
            time.sleep(POLL_S)
        (self.home / "missing").unlink(missing_ok=True)

    def failed(self, reason: str) -> None:
        """Leave word for the tests of why it could not be had."""
        self.home.mkdir(parents=True, exist_ok=True)
        place.write(self.home / "missing", reason)

    def stop(self) -> None:
        if self.running:
            process.end(self.running, self.polite_end)

    def kill(self) -> None:
        """End it as a power cut would, but for the operating system's cache."""
        if self.running:
            process.end(self.running, None)

    def remove(self) -> None:
        """Stop it, and drop its data."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def show_log(self) -> None:
        lines = (
            self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:] if self.log.exists() else []
        )
        for line in lines:
            print(f"  {self.name}: {line}", file=sys.stderr)
