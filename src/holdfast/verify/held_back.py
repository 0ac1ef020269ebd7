"""Items that a run does not find before it is to: so that nothing happens before everybody is there whom it may befall."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from holdfast.core import limits
from holdfast.runtime.script import Script


@dataclass(frozen=True)
class HeldBack(Script):
    """A script whose last items appear when a file does; who asks for them before waits, like for a slow source."""

    go: Path | None = None
    held: Mapping[str, int] = field(default_factory=dict)  # by source: items that are there before

    @classmethod
    def of(cls, script: Script, go: Path, held: Mapping[str, int]) -> HeldBack:
        """The same script, held back."""
        same = {one.name: getattr(script, one.name) for one in fields(script)}
        return cls(**same, go=go, held=held)

    def room(self, source: str, known: int) -> int | None:
        """How many further items of a source exist by now; where there are none yet, by then."""
        room, go = super().room(source, known), self.go
        if go is None or go.exists():
            return room
        left = self.held[source] - known
        if left > 0:
            return left if room is None else min(left, room)
        while not go.exists():
            time.sleep(limits.WATCH_MS / 1000)
        return room
