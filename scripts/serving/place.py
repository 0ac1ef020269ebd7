"""Where a service keeps its files, and the few things it needs of the machine.

A service's directory, `.services/NAME` of the checkout or `$HOLDFAST_SERVICES/NAME`, holds:

    port        the port, chosen at the first start
    address     what a client connects to; mode 600, since it may hold a password
    process     the pid of the server and the start time of that process
    missing     why the last start failed, in one line; absent when it did not
    log         what the server printed since its last start; `log.old` is the one before
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = CHECKOUT / ".services"

# Below the ports that the kernel hands to outgoing connections: one of those could hold ours at a restart.
PORTS = range(20000, 30000)
FREE_S_MAX = 10
LOCK_WAIT_S_MAX = 600  # another start may be installing packages
INSTALL_S_MAX = 300  # a registry that hangs counts as one that is not there


class Unavailable(Exception):
    """A service cannot be had; the message is one line that says why."""


def directory() -> Path:
    """Where the services of this call live."""
    return Path(os.environ.get("HOLDFAST_SERVICES") or HOME).absolute()


def read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return None


def write(file: Path, text: str) -> None:
    """Replace a file at once; only its owner can read it."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text + "\n")
    new.replace(file)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def port(file: Path) -> int:
    """The port remembered in the file; a new one at first, or if something else has taken it since.

    A server that was killed counts as ended before the last of its threads has: until then it holds its port.
    """
    remembered = read(file)
    deadline = time.monotonic() + FREE_S_MAX
    while remembered:
        if is_free(int(remembered)):
            return int(remembered)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    chosen = next(number for number in random.sample(PORTS, len(PORTS)) if is_free(number))
    write(file, str(chosen))
    return chosen


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One command at a time on these services."""
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_WAIT_S_MAX
    with open(home / "lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"another command has held {lock.name} for too long") from None
                time.sleep(0.1)
        yield


def run(*command: object, what: str, time_s_max: float = INSTALL_S_MAX, **options: object) -> None:
    """Run a command that must succeed; the last line that it printed says why it did not."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=time_s_max, **options,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: no answer in {time_s_max:.0f} s") from None
    except OSError as error:
        raise Unavailable(f"{what}: {error}") from None
    if done.returncode != 0:
        raise Unavailable(f"{what}: {last_word(done.stdout) or f'status {done.returncode}'}")


def last_word(printed: str) -> str:
    """The line that says most about a failure: the first error, otherwise the last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or line.startswith("E:") or "error:" in line]
    return (errors[:1] or lines[-1:] or [""])[0][:300]


def install(package: str, missing: str) -> None:
    """Install one of Debian's packages."""
    run(
        CHECKOUT / "scripts" / "apt-install", package, what=f"{missing}, and apt-get cannot install {package}"
    )
