"""A sink's target that everybody can see into, which decides by the product's own rule what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.core.errors import FencedError
from holdfast.sinks import contract
from holdfast.sinks.contract import SinkRecord


class Target:
    """Keeps the record; whoever shows the rows is told of each epoch once."""

    place = None

    def __init__(self, reach: Callable[[str], None], shows: Callable[[str], None]) -> None:
        self._reach, self._shows = reach, shows
        self.record: SinkRecord | None = None
        self._generation = 0
        self._start = 0

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        if generation < self._generation:
            raise FencedError(f"generation {generation} was replaced in the target by {self._generation}")
        self._generation, self._start = generation, start
        return self.record

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        self._reach("sink.before_publish")
        if record.generation < self._generation:
            raise FencedError(
                f"generation {record.generation} was replaced in the target by {self._generation}"
            )
        if contract.admit(self.record, record, start=self._start) == "publish":
            for segment in segments:
                self._shows(str(segment))
            self.record = record
        # The rows are there, and whoever brought them may never hear of it.
        self._reach("sink.after_publish")

    def close(self) -> None:
        pass
