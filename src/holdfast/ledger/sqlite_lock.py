"""SQLite's write lock: who holds it, and how a writer waits for it.

SQLite lets go of the lock only when its holder ends the transaction or the process ends. So whoever waits for it looks
who that is. A process of the flow that stands still inside a transaction is ended, whatever its part; one of somebody
else's is named in the error.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger.process import Process
from holdfast.protocols.lock_wait import Holding, look

# The byte of the `-shm` file that a writer locks, by SQLite's file format (WAL_WRITE_LOCK).
_WRITE_LOCK_BYTE = 120
_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process

# Closing any descriptor of a file takes away all locks that this process has on it, those of SQLite too. So these stay
# open, one a ledger, until the file behind the name is another.
_files: dict[Path, tuple[int, int]] = {}  # by path, the inode and the descriptor
_opening = Lock()


def writer(database: Path) -> int | None:
    """The other process that is inside a write transaction now; None if there is none."""
    fd = _descriptor(database.with_name(f"{database.name}-shm"))
    if fd is None:
        return None
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _WRITE_LOCK_BYTE, 1, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else None


class LockWait:
    """The wait of one writer for the lock; `processes` reads in the ledger which are the flow's."""

    def __init__(
        self, database: Path, connection: sqlite3.Connection, processes: Callable[[], Collection[Process]]
    ) -> None:
        self._database = database
        self._connection = connection
        self._processes = processes
        self._looked = time.monotonic()
        self._deadline = self._looked + limits.LEDGER_BUSY_MS_MAX / 1000
        self._seen: Holding | None = None

    def ended(self) -> Process | None:
        """Look at the lock after a try in vain: the process that was ended because it kept it, if one was.

        Raises LedgerError once the wait has lasted too long.
        """
        now = time.monotonic()
        waited_ms, self._looked = int((now - self._looked) * 1000), now
        version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        self._seen = look(self._seen, writer(self._database), version, waited_ms)
        if self._seen is not None and self._seen.is_stuck():
            found = self._end(self._seen.holder)
            if found is not None:
                return found
        if now >= self._deadline:
            raise self._locked()
        return None

    def _end(self, pid: int) -> Process | None:
        """End a process if it is the flow's."""
        stuck = Process.here(pid)
        if stuck not in self._processes():
            return None
        try:
            stuck.end()
        except PermissionError:
            return None
        return stuck

    def _locked(self) -> LedgerError:
        by = "" if self._seen is None else f" by process {self._seen.holder}"
        return LedgerError(
            f"the ledger cannot be used: {self._database} is locked{by}",
            operation="ledger write",
            heals=True,
            hint="It is no process of this flow: end it, or let it finish what it does with the file."
            if self._seen is not None and self._seen.is_stuck()
            else None,
        )


def _descriptor(path: Path) -> int | None:
    """A descriptor of the file that now has the name; None if there is no such file."""
    with _opening:
        try:
            inode = path.stat().st_ino
            known = _files.get(path)
            if known is None or known[0] != inode:
                _files[path] = inode, os.open(path, os.O_RDONLY)
                if known is not None:
                    os.close(known[1])
            return _files[path][1]
        except FileNotFoundError:
            return None
