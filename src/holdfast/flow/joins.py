"""A join as a user describes it: keys, times, how far the times may lie apart, and what its columns are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.duration import microseconds, signed_microseconds
from holdfast.core.errors import PlanError
from holdfast.flow.windows import EventTime, event_time

HOWS = ("inner", "left")
SIDES = ("left", "right")


@dataclass(frozen=True)
class Matching:
    """Which rows of two streams belong together: equal keys, and `right time - left time` within two bounds."""

    keys: tuple[str, ...]
    times: tuple[EventTime, EventTime]  # of the left and of the right; alike but for the column
    low_us: int
    high_us: int
    how: str
    suffixes: tuple[str, str]


def matching_of(
    on: str | Sequence[str],
    time: tuple[str, str],
    within: tuple[str, str],
    late: str,
    suffixes: tuple[str, str],
    how: str,
    max_ahead: str | None,
) -> Matching:
    """Check what the user wrote."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys:
        raise PlanError("join needs at least one column in on=", operation="describe")
    if len(set(keys)) != len(keys):
        raise PlanError(f"join names a column twice: {', '.join(keys)}", operation="describe")
    if how not in HOWS:
        raise PlanError(f"how={how!r} is not one of {', '.join(HOWS)}", operation="describe")
    left_time, right_time = _pair(time, "time", '("ts", "ts")')
    low, high = _pair(within, "within", '("-5 minutes", "5 minutes")')
    low_us, high_us = signed_microseconds(low, "within"), signed_microseconds(high, "within")
    if low_us > high_us:
        raise PlanError(
            f"within={within!r} is empty: its lower bound is above its upper one",
            operation="describe",
            hint="It bounds the right time less the left time, the smaller number first.",
        )
    late_us = microseconds(late, "late", zero=True)
    times = event_time(left_time, late_us, max_ahead), event_time(right_time, late_us, max_ahead)
    one, other = _pair(suffixes, "suffixes", '("", "_right")')
    if one == other:
        raise PlanError(f"suffixes={suffixes!r} tell nothing apart", operation="describe")
    return Matching(keys, times, low_us, high_us, how, (one, other))


def _pair(given: tuple[str, str], what: str, example: str) -> tuple[str, str]:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise PlanError(
            f"{what}={given!r} is not a pair, one for the left and one for the right",
            operation="describe",
            hint=f"Write {what}={example}.",
        )
    return given[0], given[1]
