"""The servers that `scripts/services` starts, as tests see them: where they are, or why they are not.

A test whose server is missing is skipped, and the end of the run says so in one line a server. In CI, where
everything must have run, it is an error.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMAND_S_MAX = 400  # an installation and a start, each of which is bounded in scripts/serving
CONNECT_S_MAX = 5
SKIPPED = re.compile(r"services: \w+ could not be had \(.*\)$")


def home() -> Path:
    return Path(os.environ.get("HOLDFAST_SERVICES") or ROOT / ".services")


def read(name: str, file: str) -> str:
    """What a file of a service says; empty if there is none."""
    found = home() / name / file
    return found.read_text().strip() if found.is_file() else ""


def find(name: str) -> str:
    """The address of a server that takes connections; ends the test if there is none.

    HOLDFAST_TEST_POSTGRES and HOLDFAST_TEST_KAFKA name servers of your own instead.
    """
    own = os.environ.get(f"HOLDFAST_TEST_{name.upper()}")
    if not own and (missing := read(name, "missing")):
        be_without(name, missing)
    address = own or read(name, "address")
    if not address:
        be_without(name, f"not started: scripts/services start {name}")
    if not takes_connections(address):
        be_without(name, "started once, but nothing answers")
    return address


def takes_connections(address: str) -> bool:
    server = urlsplit(address if "//" in address else f"//{address.split(',')[0]}")
    try:
        socket.create_connection((server.hostname, server.port), timeout=CONNECT_S_MAX).close()
    except OSError:
        return False
    return True


def be_without(name: str, reason: str) -> NoReturn:
    message = f"services: {name} could not be had ({reason})"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def skipped(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line for every server that tests were skipped for, with their number."""
    reasons = (report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple))
    found = (SKIPPED.search(reason) for reason in reasons)
    numbers = Counter(match[0] for match in found if match)
    return [f"{line}: {n} test{'s' if n > 1 else ''} skipped" for line, n in numbers.items()]


def services(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Type a command of `scripts/services`, for the servers of that directory."""
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "services", *words],
        env={**os.environ, "HOLDFAST_SERVICES": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S_MAX,
    )  # fmt: skip


@dataclass(frozen=True)
class OwnServers:
    """Servers of a module's own, which it may restart."""

    home: Path

    def address(self, name: str) -> str:
        """Where one is; it is started when it is first asked for."""
        if not (self.home / name / "address").exists():
            done = services("start", name, home=self.home)
            if (self.home / name / "missing").exists():
                be_without(name, (self.home / name / "missing").read_text().strip())
            assert done.returncode == 0, done.stderr
        return (self.home / name / "address").read_text().strip()

    def restart(self, name: str) -> None:
        """kill -9, and a new start."""
        for word in ("kill", "start"):
            done = services(word, name, home=self.home)
            assert done.returncode == 0, done.stderr

    def restart_command(self, *names: str) -> str:
        """The same for a shell."""
        command = shlex.join([sys.executable, str(ROOT / "scripts" / "services")])
        steps = (f"{command} {word} {name}" for name in names for word in ("kill", "start"))
        return f"export HOLDFAST_SERVICES={shlex.quote(str(self.home))}; " + " && ".join(steps)
