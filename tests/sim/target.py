"""A target of a sink, as readers see it. What it takes is decided by the product's own `opened_for` and `admit`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.core.errors import FencedError
from holdfast.sinks import contract
from holdfast.sinks.contract import SinkRecord
from sim.checker import Checker
from sim.store import FLOW


@dataclass(frozen=True)
class Opening:
    """What a process has opened the target by."""

    generation: int
    flow: str = FLOW
    branch: int = 0


class Target:
    """Holds the record and the epochs that readers have seen."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._record: SinkRecord | None = None
        self._fence = 0
        self.seen = 0

    def open(self, generation: int) -> Opening:
        """Fence every older generation."""
        if generation < self._fence:
            raise FencedError(f"generation {generation} was replaced by {self._fence}", operation="open")
        self._fence = generation
        if self._record:
            self._record = replace(self._record, generation=generation)
        self._checker.fenced_in_target(generation)
        return Opening(generation)

    def publish(self, opening: Opening, epoch: int, generation: int) -> str:
        """Make an epoch visible, once."""
        new = SinkRecord(FLOW, 0, epoch, 0, generation)
        contract.opened_for(opening, new, "the target")
        if self._record is None and generation < self._fence:
            raise FencedError(f"generation {generation} was replaced by {self._fence}", operation="publish")
        verdict = contract.admit(self._record, new)
        if verdict == "publish":
            self._record = new
            self.seen += 1
            self._checker.seen_in_target(epoch, generation)
        return verdict
