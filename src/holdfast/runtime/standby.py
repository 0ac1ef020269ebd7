"""A worker that waits for its turn: it practises until it is warm, says so, and watches its group."""

from __future__ import annotations

import time
from threading import Event, Thread

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, LedgerError
from holdfast.ledger import groups
from holdfast.ledger.groups import GroupRow
from holdfast.ledger.patience import Patience
from holdfast.protocols.supervision import READY
from holdfast.runtime import rehearsal
from holdfast.runtime.context import Runtime


class Standby:
    """Waits until the ledger says that this worker leads its group, or computes with it."""

    def __init__(self, rt: Runtime, stop: Event) -> None:
        self._rt = rt
        self._stop = stop
        self._called = Event()
        self._rehearsals = 0

    def wait(self) -> GroupRow | None:
        """The group as it is when this worker is called; None if it is told to stop before, or struck off the list."""
        practice = Thread(target=self._practise, name="rehearsal", daemon=True)
        practice.start()
        try:
            return self._watch()
        finally:
            self._called.set()
            while practice.is_alive():
                self._rt.interrupt_jobs()
                practice.join(limits.WATCH_MS / 1000)
            rehearsal.clear(self._rt)

    def _watch(self) -> GroupRow | None:
        rt, outlook, patience = self._rt, self._rt.news.outlook(), Patience()
        while not self._stop.wait(limits.WATCH_MS / 1000):
            if not outlook.is_due():
                continue
            outlook.look()
            try:
                with rt.ledger.read() as tx:
                    row, listed = groups.group_row(tx, rt.group), groups.is_listed(tx, rt.worker)
                patience.restore()
            except LedgerError as error:
                outlook.forget()
                patience.bear(error)
                continue
            if row is not None and rt.worker in row.members:
                return row
            if not listed:
                return None
        return None

    def _practise(self) -> None:
        rt = self._rt
        groups.update_worker(rt.ledger, rt.worker, status=READY)
        # A worker that nobody else stands before is called at once, and should not have begun anything.
        self._called.wait(limits.POLL_MS / 1000)
        while not self._called.is_set():
            began = time.monotonic()
            try:
                done = rehearsal.rehearse(rt)
            except HoldfastError:
                done = False
            if done and not self._called.is_set():
                self._rehearsals += 1
                groups.update_worker(rt.ledger, rt.worker, rehearsals=self._rehearsals)
            warm = self._rehearsals >= limits.REHEARSALS_TO_BE_WARM
            pause = limits.REHEARSE_EVERY_MS if warm else limits.POLL_MS
            self._called.wait(max(0.0, pause / 1000 - (time.monotonic() - began) if warm else pause / 1000))
