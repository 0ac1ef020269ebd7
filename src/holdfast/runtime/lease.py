"""A worker's lease: a counter in a file of its own, raised as long as the process gets to run.

The file is not the ledger, so that commits cannot delay it. It needs no fsync: it is read by living processes only. It is
raised by a thread of the interpreter, not by native code, so that a worker whose interpreter is held shows.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread

from holdfast.core import crashpoints, limits

LEASES = "leases"


class Lease:
    """Raises the counter of one worker until it is closed."""

    def __init__(self, root: Path, worker: str, lease_ms: int = limits.LEASE_MS_MAX) -> None:
        self._path = lease_path(root, worker)
        self._rest_s = lease_ms / limits.LEASE_RAISES / 1000
        self._closed = Event()
        self._path.parent.mkdir(exist_ok=True)
        self._thread = Thread(target=self._raise, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop raising it, and take the file away."""
        self._closed.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _raise(self) -> None:
        counter = 0
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            while True:
                crashpoints.reach("lease.before_renew")
                counter += 1
                os.pwrite(fd, b"%020d" % counter, 0)
                if self._closed.wait(self._rest_s):
                    return
        finally:
            os.close(fd)


def lease_path(root: Path, worker: str) -> Path:
    """Where the counter of a worker is."""
    return root / LEASES / worker


def read_lease(root: Path, worker: str) -> int | None:
    """The counter of a worker, None if it cannot be read."""
    try:
        return int(lease_path(root, worker).read_bytes())
    except (OSError, ValueError):
        return None
