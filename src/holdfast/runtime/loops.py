"""The loops of a worker: a thread each, which step on as long as there is work, and rest until there may be more.

An error in any loop stops all of them. Two are borne: a refusal that only means that another member was expelled
meanwhile, and an outage of the ledger that heals soon enough. A step that was cut off by one is taken again from the
start: it looks at what the ledger holds then, so it does not matter whether its last transaction was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, LedgerError
from holdfast.ledger.patience import Patience
from holdfast.runtime.context import Runtime
from holdfast.spark.epoch import is_interrupted


@contextmanager
def cut_short(rt: Runtime, told: Event) -> Iterator[None]:
    """What this thread does is cut short by a stop, jobs included; whoever does it next begins anew."""
    over = Event()

    def watch() -> None:
        while not over.wait(limits.WATCH_MS / 1000):
            if told.is_set():
                rt.stopping.set()
                rt.interrupt_jobs()

    watcher = Thread(target=watch, name="stop")
    watcher.start()
    try:
        yield
    except HoldfastError:
        if not rt.stopping.is_set():
            raise
    finally:
        over.set()
        watcher.join()


@dataclass(frozen=True)
class Loop:
    """What is done again and again."""

    name: str
    step: Callable[[], bool]  # whether there was work
    rest_ms: int = limits.POLL_MS  # after a step without work
    urgent: bool = True  # whether a commit in this process cuts the rest short
    by_news: bool = (
        True  # whether only a change of the ledger can bring work; otherwise every rest ends in a look
    )
    is_due: Callable[[], bool] = lambda: False  # whether the clock has brought what the last step waited for


class Loops:
    """The loops of one worker that are under way."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._threads: dict[str, Thread] = {}
        self.failures: list[BaseException] = []

    def __bool__(self) -> bool:
        return bool(self._threads)

    def start(self, loops: list[Loop]) -> None:
        """Start those that are not under way yet."""
        for loop in loops:
            if loop.name not in self._threads:
                bell = self._rt.alarm.join() if loop.urgent else self._rt.stopping
                self._threads[loop.name] = Thread(target=self._drive, args=(loop, bell), name=loop.name)
                self._threads[loop.name].start()

    def failed(self, error: BaseException) -> None:
        """Stop all loops because of an error."""
        expected = isinstance(error, HoldfastError) or is_interrupted(error)
        if not (self._rt.stopping.is_set() and expected):
            self.failures.append(error)
        self._rt.stopping.set()
        self._rt.alarm.ring()

    def stop(self) -> None:
        """Stop all loops, and wait for them."""
        rt = self._rt
        rt.stopping.set()
        rt.alarm.ring()
        for thread in self._threads.values():
            while thread.is_alive():
                rt.interrupt_jobs()
                thread.join(limits.POLL_MS / 1000)

    def _drive(self, loop: Loop, bell: Event) -> None:
        rt, outlook, patience = self._rt, self._rt.news.outlook(), Patience()
        try:
            while not rt.stopping.is_set():
                if loop.urgent:
                    bell.clear()
                outlook.look()
                if not self._stepped(loop.step, patience):
                    while not bell.wait(loop.rest_ms / 1000) and loop.by_news:
                        if outlook.is_due() or loop.is_due():
                            break
        except BaseException as error:
            self.failed(error)

    def _stepped(self, step: Callable[[], bool], patience: Patience) -> bool:
        """Whether there was work, or is to be tried again."""
        try:
            done = self._rt.surviving(step)
        except LedgerError as error:
            patience.bear(error)
            return not self._rt.stopping.is_set()
        patience.restore()
        return done
