"""Keeps a follower in step with its leader: it lets an epoch pass rather than begin it too late (`protocols/pace.py`).

Nothing depends on it. How late the follower was is told by the wall clock, from the time that the winner wrote down: where
clocks differ, it waits for no longer than two of its own epochs, or not at all. It waits no longer as soon as the epoch is
committed, the group has changed, or it leads.
"""

from __future__ import annotations

import time

from holdfast.core import limits
from holdfast.ledger import epochs
from holdfast.ledger.epochs import StageRow
from holdfast.protocols.pace import lets_pass_s
from holdfast.runtime.context import Runtime


class Pace:
    """Of one stage, in a worker that follows."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._beaten: StageRow | None = None  # where the stage stood when the epoch was lost
        self._until = 0.0

    def lost(self, row: StageRow, epoch_s: float) -> None:
        """The epoch behind `row` took so long here, and another member had committed it before."""
        with self._rt.ledger.read() as tx:
            committed_ms = epochs.committed_ms(tx, row, row.head + 1)
        if committed_ms is None:
            return
        behind_s = time.time() - committed_ms / 1000
        self._beaten, self._until = row, time.monotonic() + lets_pass_s(behind_s, epoch_s)

    def keep(self) -> None:
        """Wait for the commit of the next epoch, if it has been under way for too long to take part in it."""
        beaten, self._beaten = self._beaten, None
        outlook = self._rt.news.outlook()
        while beaten is not None and self._has_time():
            if outlook.is_due():
                outlook.look()
                with self._rt.ledger.read() as tx:
                    now = epochs.stage_row(tx, beaten.stage)
                if (now.generation, now.head) != (beaten.generation, beaten.head + 1):
                    return
            self._rt.stopping.wait(limits.PACE_LOOK_MS / 1000)

    def _has_time(self) -> bool:
        rt = self._rt
        return time.monotonic() < self._until and not (
            rt.leads or rt.stopping.is_set() or rt.closing.is_set()
        )
