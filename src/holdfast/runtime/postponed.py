"""What can wait until a worker has committed its next epoch, because it would take CPU time from it: for a moment at most."""

from __future__ import annotations

import time

from holdfast.runtime.progress import Progress


class Postponed:
    """Whether it has waited for an epoch, or for long enough."""

    def __init__(self, progress: Progress, ms_max: int) -> None:
        self._progress = progress
        self._epochs = progress.epochs
        self._until = time.monotonic() + ms_max / 1000

    def is_over(self) -> bool:
        """Whether its time has come."""
        return self._progress.epochs != self._epochs or time.monotonic() >= self._until
