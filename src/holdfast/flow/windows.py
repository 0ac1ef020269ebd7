"""Event time as a user describes it: which column, how late rows may be, and the windows over it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core import limits
from holdfast.core.duration import microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

EMITS = ("final", "updates")

# Columns of a window's output beside the keys and the aggregates.
WINDOW_START, WINDOW_END = "window_start", "window_end"


@dataclass(frozen=True)
class Sliding:
    """Windows of a fixed size, one every slide, aligned to 1970-01-01 UTC; tumbling if both are the same."""

    size_us: int
    slide_us: int

    def __str__(self) -> str:
        every = "" if self.size_us == self.slide_us else f" every {self.slide_us} us"
        return f"windows of {self.size_us} us{every}"

    @property
    def spelled(self) -> str:
        """In the units of people."""
        if self.size_us == self.slide_us:
            return f"tumbling, {spelled(self.size_us)}"
        return f"sliding, {spelled(self.size_us)} every {spelled(self.slide_us)}"


@dataclass(frozen=True)
class Session:
    """Rows of a key that follow each other by no more than a gap."""

    gap_us: int

    def __str__(self) -> str:
        return f"sessions with gaps of {self.gap_us} us"

    @property
    def spelled(self) -> str:
        """In the units of people."""
        return f"session, gaps of {spelled(self.gap_us)}"


@dataclass(frozen=True)
class EventTime:
    """The event time of a stage: its column, the lateness it waits for, and how far ahead of the clock is too far."""

    column: str
    late_us: int
    max_ahead_us: int | None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        ahead = None if self.max_ahead_us is None else spelled(self.max_ahead_us)
        return {"column": self.column, "late": spelled(self.late_us), "max_ahead": ahead}


@dataclass(frozen=True)
class Window:
    """Windows over an event time, and whether they leave once, when final, or whenever they change."""

    time: EventTime
    kind: Sliding | Session
    emit: str

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {"window": self.kind.spelled, "emit": self.emit, "time": self.time.facts}


def window_of(
    time: str,
    tumbling: str | None,
    sliding: tuple[str, str] | None,
    session: str | None,
    late: str,
    emit: str,
    max_ahead: str | None,
) -> Window:
    """Check what the user wrote."""
    given = [kind for kind in (tumbling, sliding, session) if kind is not None]
    if len(given) != 1:
        raise PlanError(
            "window needs exactly one of tumbling=, sliding= and session=",
            operation="describe",
            hint='Write .window("ts", tumbling="1 minute", late="10 seconds").',
        )
    if emit not in EMITS:
        raise PlanError(f"emit={emit!r} is not one of {', '.join(EMITS)}", operation="describe")
    if session is not None:
        if emit == "updates":
            raise PlanError(
                'a session window cannot have emit="updates": sessions that merge would have to be taken back',
                operation="describe",
                hint='Use emit="final".',
            )
        kind: Sliding | Session = Session(microseconds(session, "session"))
    else:
        kind = _sliding(tumbling, sliding)
    return Window(event_time(time, microseconds(late, "late", zero=True), max_ahead), kind, emit)


def event_time(column: str, late_us: int, max_ahead: str | None) -> EventTime:
    """An event time with a checked bound on rows from the future."""
    ahead = None if max_ahead is None else microseconds(max_ahead, "max_ahead", zero=True)
    return EventTime(column, late_us, ahead)


def _sliding(tumbling: str | None, sliding: tuple[str, str] | None) -> Sliding:
    if tumbling is not None:
        size = microseconds(tumbling, "tumbling")
        return Sliding(size, size)
    if not (isinstance(sliding, tuple | list) and len(sliding) == 2):
        raise PlanError(
            f"sliding={sliding!r} is not a size and a slide",
            operation="describe",
            hint='Write sliding=("10 minutes", "1 minute").',
        )
    size, slide = microseconds(sliding[0], "sliding size"), microseconds(sliding[1], "slide")
    if slide > size:
        raise PlanError(
            f"a slide of {sliding[1]} leaves gaps between windows of {sliding[0]}", operation="describe"
        )
    if -(-size // slide) > limits.WINDOWS_PER_ROW_MAX:
        raise PlanError(
            f"every row would be in {-(-size // slide):,} windows, more than {limits.WINDOWS_PER_ROW_MAX:,}",
            operation="describe",
            hint="Take a longer slide, or tumbling windows and a second aggregate over their results.",
        )
    return Sliding(size, slide)
