"""Whether the ledger has changed since somebody looked: one thread listens for all loops of a process.

Nothing depends on it. A loop that hears nothing looks again after a while all the same, and while nothing can be heard
every loop looks as often as if there were no news. What this process writes itself counts as soon as it is written, so
nobody acts twice on what was true before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from types import TracebackType

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger.databases import Watch
from holdfast.ledger.ledger import Ledger


class News:
    """Counts the changes of a ledger, from entering to leaving it; outside, nothing is heard."""

    def __init__(self, ledger: Ledger, ring: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._ring = ring  # called when another process has changed something, and not too often
        self._lock = Lock()
        self._version = 0
        self._written = 0  # by this process
        self._hears = False
        self._to_ring, self._ring_at = False, 0.0  # whether, and not before when
        self._closed = Event()
        self._thread: Thread | None = None
        ledger.on_commit(self._wrote)

    @property
    def version(self) -> int | None:
        """A number that is another one after a change; None while nobody knows."""
        return self._version if self._hears else None

    def outlook(self) -> Outlook:
        """When one loop has cause to look again."""
        return Outlook(self)

    def __enter__(self) -> News:
        self._closed.clear()
        self._thread = Thread(target=self._listen, name="news", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._hears = False

    def _wrote(self) -> None:
        with self._lock:
            self._version += 1
            self._written += 1

    def _listen(self) -> None:
        watch = None
        try:
            while not self._closed.is_set():
                try:
                    watch = watch or self._ledger.watch()
                    self._hear(watch)
                except LedgerError:
                    # Nobody has to be told: the loops ask by themselves, and are told what they then meet.
                    self._hears = False
                    self._closed.wait(limits.LEDGER_RETRY_MS / 1000)
        finally:
            if watch is not None:
                watch.close()

    def _hear(self, watch: Watch) -> None:
        before, rest = self._written, self._ring_at - time.monotonic()
        changed = watch.wait(max(0.0, rest) if self._to_ring else limits.NEWS_WAIT_MS / 1000)
        with self._lock:
            self._version += changed or not self._hears
            self._hears = True
        self._to_ring = self._to_ring or (changed and self._written == before)
        if self._to_ring and time.monotonic() >= self._ring_at:
            self._to_ring, self._ring_at = False, time.monotonic() + limits.NEWS_REST_MS / 1000
            self._ring()


class Outlook:
    """Of one loop: what it has seen of the ledger, and when it is to look again."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._seen: int | None = None
        self._anyway_at = 0.0

    def look(self) -> None:
        """To be called before the ledger is read: what changes meanwhile is news."""
        self._seen = self._news.version
        self._anyway_at = time.monotonic() + limits.LOOK_ANYWAY_MS / 1000

    def forget(self) -> None:
        """The look failed: nothing was seen."""
        self._seen, self._anyway_at = None, 0.0

    def is_due(self) -> bool:
        """Whether there may be something to see."""
        version = self._news.version
        return version is None or version != self._seen or time.monotonic() >= self._anyway_at
