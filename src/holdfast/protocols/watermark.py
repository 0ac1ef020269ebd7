"""How far event time has come: the watermark of a plan, and what a stage promises to those who read it.

A watermark says that no row below it is expected any more. It follows the slowest input, never goes back, and
is made of what was committed before the epoch, so that it can be recorded before the work starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Before every event time; far enough from the smallest number that durations can be taken off it.
BEGINNING_US = -(1 << 62)

# How long state is kept that never expires: further back than any event time.
NEVER_US = 1 << 62


@dataclass(frozen=True)
class InputClock:
    """What is known of the event time of one input."""

    newest_us: int | None  # the largest event time committed, None before the first row
    frontier_us: int | None  # the producer still holds back rows down to this; None if it holds back none
    idle: bool = False  # silent for longer than the flow wants to wait for it


@dataclass(frozen=True)
class Timing:
    """What the event time of an operator means for its plans."""

    columns: tuple[str, ...]  # of event time, by side; none: the plan's own time stands in for the watermark
    late_us: int
    keeps_us: int = 0  # how long behind the watermark its state is still needed
    emits_at_close: bool = False
    slice_us: int = 1  # state is dropped in slices of this length
    holds_us: int | None = (
        None  # how far behind the watermark the rows lie that it holds back; None: it holds none
    )
    emits_windows: bool = False  # so that the ends of what is still to come lie above the floor

    def floor(self, watermark_us: int | None) -> int | None:
        """Buckets below this are no part of the state once the watermark has been reached."""
        return None if watermark_us is None else watermark_us - self.keeps_us + 1

    def closing(self, watermark_us: int) -> int:
        """The last bucket that may hold what the watermark ends.

        >>> Timing(("ts",), 0, slice_us=10).closing(21)
        30
        """
        return -(-(watermark_us - self.keeps_us) // self.slice_us) * self.slice_us

    def frontier(self, watermark_us: int | None, holds: Sequence[tuple[int, int]]) -> int:
        """Rows that the operator still holds back, or will, are of this event time or later."""
        assert self.holds_us is not None
        if watermark_us is None:
            return BEGINNING_US
        return min([watermark_us + 1 - self.holds_us, *(earliest for _, earliest in holds)])


def watermark(before_us: int | None, inputs: Sequence[InputClock], late_us: int) -> int | None:
    """The watermark after `before_us`: that of the slowest input which is not idle; of the fastest if all are.

    >>> watermark(None, [InputClock(100, None), InputClock(70, None)], 10)
    60
    >>> watermark(None, [InputClock(100, None), InputClock(70, None, idle=True)], 10)
    90
    >>> watermark(60, [InputClock(100, 50)], 10)
    60
    >>> watermark(5, [InputClock(100, None), InputClock(None, None)], 10)
    5
    """
    active = [clock for clock in inputs if not clock.idle]
    reached = [_reached(clock, late_us) for clock in active or inputs]
    known = [value for value in reached if value is not None]
    if not known or (active and len(known) < len(reached)):
        return before_us
    now = min(known) if active else max(known)
    if now == BEGINNING_US:
        return before_us
    return now if before_us is None else max(before_us, now)


def _reached(clock: InputClock, late_us: int) -> int | None:
    if clock.newest_us is None:
        return None
    own = clock.newest_us - late_us
    return own if clock.frontier_us is None else min(own, clock.frontier_us)
