"""Whether whoever holds a lock keeps it, or is only found with it again and again.

A process that waits looks from time to time at who holds the lock, and at a number that changes with every commit. The
same holder without a commit in between stands still in one transaction. What counts is the time between looks, each up
to a bound: a waiter that was itself kept from running has seen nothing meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.core import limits


@dataclass(frozen=True)
class Holding:
    """What a waiter has seen of the lock."""

    holder: int  # the process
    version: int  # of what is committed
    held_ms: int = 0  # under the waiter's eyes

    def is_stuck(self) -> bool:
        """Whether nobody has to wait for it any longer."""
        return self.held_ms >= limits.LEDGER_HOLD_MS_MAX


def look(before: Holding | None, holder: int | None, version: int, waited_ms: int) -> Holding | None:
    """Look at the lock `waited_ms` after the look before; None while nobody is seen to hold it."""
    if holder is None:
        return None
    if before is None or (holder, version) != (before.holder, before.version):
        return Holding(holder, version)
    return replace(before, held_ms=before.held_ms + min(waited_ms, limits.LEDGER_LOOK_MS))
