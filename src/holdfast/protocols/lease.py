"""Whether a process that raises a counter still does: judged by the judge's own clock alone.

A counter that stands still proves nothing while the judge could not look, or was itself kept from running. So after
a read that failed, and after a pause of its own, the judge starts to wait anew: neither a step of the wall clock nor
an outage of the disk deposes anybody.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sighting:
    """What a judge has seen of a counter. Times are of the judge's monotonic clock."""

    counter: int
    changed_ms: int  # since when it has stood still, as far as the judge can tell
    looked_ms: int

    def silent_ms(self) -> int:
        """How long the counter has stood still under the judge's eyes."""
        return self.looked_ms - self.changed_ms


def look(before: Sighting | None, counter: int | None, now_ms: int, pause_ms_max: int) -> Sighting:
    """Look at a counter; `counter` is None if it could not be read."""
    if before is None or counter is None or counter != before.counter:
        return Sighting(before.counter if counter is None and before else counter or 0, now_ms, now_ms)
    if now_ms - before.looked_ms > pause_ms_max:
        return Sighting(counter, now_ms, now_ms)
    return Sighting(counter, before.changed_ms, now_ms)
