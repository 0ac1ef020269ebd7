"""A join as a user describes it: keys, times, how far the times may lie apart, and what its columns are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.duration import microseconds, signed_microseconds
from holdfast.core.errors import PlanError
from holdfast.flow.windows import EventTime, event_time

SIDES = ("left", "right")

# Joins that give out pairs: the sides whose rows leave without a partner too.
OUTER: dict[str, tuple[int, ...]] = {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}

# Joins that give out left rows alone, and ask of the right only whether there is a partner.
ASKING = ("semi", "anti")

HOWS = (*OUTER, *ASKING)

# Other names that Spark has for them, in small letters and without underscores, as Spark itself compares them.
_SPARKS = {
    "leftouter": "left",
    "rightouter": "right",
    "outer": "full",
    "fullouter": "full",
    "leftsemi": "semi",
    "leftanti": "anti",
}


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
    return Matching(keys, times, low_us, high_us, _kind(how), (one, other))


def _kind(how: str) -> str:
    """The one name of a kind of join, by any that Spark has for it.

    >>> _kind("LEFT_OUTER"), _kind("outer"), _kind("leftsemi")
    ('left', 'full', 'semi')
    """
    plain = how.lower().replace("_", "") if isinstance(how, str) else ""
    kind = _SPARKS.get(plain, plain)
    if kind in HOWS:
        return kind
    said, hint = f"how={how!r} is not one of {', '.join(HOWS)}", "Spark's other names for these do as well."
    if kind == "cross":
        said = "a cross join of streams would have to keep every row for ever"
        hint = 'Join by a key within a span of time: join(right, on=..., time=..., within=..., how="inner").'
    elif kind in ("rightsemi", "rightanti"):
        hint = f'Exchange the streams: right.join(left, ..., how="{kind.removeprefix("right")}").'
    raise PlanError(said, operation="describe", hint=hint)


def _pair(given: tuple[str, str], what: str, example: str) -> tuple[str, str]:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise PlanError(
            f"{what}={given!r} is not a pair, one for the left and one for the right",
            operation="describe",
            hint=f"Write {what}={example}.",
        )
    return given[0], given[1]
