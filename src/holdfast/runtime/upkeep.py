"""What a worker that leads does beside its epochs: merging, shipping, sweeping, and repairing what others have missed.

None of it is urgent, and all of it takes CPU time from the epochs. So it begins when whoever leads has committed an epoch, or
after a moment: a merge that was due when the predecessor died would hold up just the epoch that everybody waits for.
"""

from __future__ import annotations

from holdfast.core import limits
from holdfast.runtime.context import Runtime
from holdfast.runtime.discovery import Discovery
from holdfast.runtime.loops import Loop
from holdfast.runtime.merger import Merger
from holdfast.runtime.postponed import Postponed
from holdfast.runtime.repair import needs_repair, repair
from holdfast.storage.shipper import ship
from holdfast.storage.sweeper import sweep


class Upkeep:
    """The upkeep of a worker's stages."""

    def __init__(self, rt: Runtime, discovery: Discovery) -> None:
        self._rt = rt
        self._discovery = discovery
        self.merger = Merger(rt)
        self._postponed: Postponed | None = None  # None before the worker leads, and once it has begun

    def await_an_epoch(self) -> None:
        """Let it begin after the next epoch."""
        self._postponed = Postponed(self._rt.progress, limits.UPKEEP_AFTER_MS)

    def is_to_begin(self) -> bool:
        """Whether it is time for the loops; once."""
        if self._postponed is None or not self._postponed.is_over():
            return False
        self._postponed = None
        return True

    def loops(self) -> list[Loop]:
        """What runs from time to time; a commit does not make the last two more urgent."""
        seldom = limits.SWEEP_EVERY_MS
        return [
            Loop("merge", self.merger.step),
            Loop("ship", self.ship),
            Loop("sweep", self.sweep, seldom, urgent=False),
            Loop("repair", self._repair, seldom, urgent=False),
        ]

    def ship(self) -> bool:
        """Carry files to their tiers; whether there were any."""
        rt = self._rt
        shipped = any([ship(rt.ledger, rt.root, name, rt.generation, rt.route(name)) for name in rt.own])
        if shipped and rt.plan.loops:
            rt.alarm.ring()  # what is fed back may be read from here on
        return shipped

    def sweep(self) -> bool:
        """Remove what nobody needs; there is never cause to do it again at once."""
        rt = self._rt
        for name in rt.own:
            consumers, route = rt.plan.consumers(name), rt.route(name)
            sweep(rt.ledger, rt.root, name, rt.generation, consumers, route, rt.pins.held)
        self._discovery.let_go()
        return False

    def _repair(self) -> bool:
        """A reader in another worker may have marked a file as lost."""
        if needs_repair(self._rt):
            repair(self._rt)
        return False
