"""A sink that lets rows go: for flows of which only the state matters, and for measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.sinks.contract import SinkRecord


class DiscardSink:
    """Has no target, and so nothing that an old generation could spoil: what the ledger says is its record."""

    @property
    def place(self) -> None:
        """Nothing that could be anyone else's too."""
        return None

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """The record is what the ledger's cursor says."""
        return SinkRecord(flow, branch, start - 1, 0, generation) if start else None

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Let the rows go."""

    def close(self) -> None:
        """Nothing is held."""
