"""Durations as a user writes them, in microseconds: the unit of Spark's timestamps."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.core.errors import PlanError

_UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
_SPELLED = ("day", "hour", "minute", "second", "millisecond", "microsecond")
_PART = re.compile(r"\s*(\d{1,18})\s*([a-zµ]+)\s*")

# About 290,000 years fit a signed number of microseconds; a tenth of it leaves room for sums.
_MAX_US = 10**18


def microseconds(duration: str | timedelta, what: str, *, zero: bool = False) -> int:
    """Read "10 seconds", "1 hour 30 minutes" or a timedelta; months and years have no fixed length.

    >>> microseconds("1 minute 30 s", "late")
    90000000
    """
    if isinstance(duration, timedelta):
        value = duration // timedelta(microseconds=1)
    else:
        value = _parsed(duration, what)
    if not (0 if zero else 1) <= value <= _MAX_US:
        raise PlanError(
            f"{what}={duration!r} is not a {'' if zero else 'positive '}duration", operation="describe"
        )
    return value


def idle_us(idle_after: str | None) -> int | None:
    """How long a source may be silent before it counts as idle; None if it never does."""
    return None if idle_after is None else microseconds(idle_after, "idle_after", zero=True)


def spelled(us: int) -> str:
    """A number of microseconds as a user would write it, in the fewest words.

    >>> spelled(5_400_000_000)
    '1 hour 30 minutes'
    >>> spelled(0)
    '0 seconds'
    >>> spelled(-5_000_000)
    '-5 seconds'
    """
    if us < 0:
        return f"-{spelled(-us)}"
    words, rest = [], us
    for unit in _SPELLED:
        count, rest = divmod(rest, _UNITS_US[unit])
        if count:
            words.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(words) or "0 seconds"


def signed_microseconds(duration: str | timedelta, what: str) -> int:
    """A duration that may lie on either side of zero.

    >>> signed_microseconds("-5 s", "within")
    -5000000
    """
    if isinstance(duration, timedelta):
        sign, size = (-1, -duration) if duration < timedelta() else (1, duration)
        return sign * microseconds(size, what, zero=True)
    if isinstance(duration, str) and duration.lstrip().startswith("-"):
        return -microseconds(duration.lstrip()[1:], what, zero=True)
    return microseconds(duration, what, zero=True)


def _parsed(text: str, what: str) -> int:
    total, position = 0, 0
    while isinstance(text, str) and (part := _PART.match(text.lower(), position)):
        unit = part.group(2)
        size = _UNITS_US.get(unit) or _UNITS_US.get(unit.removesuffix("s"))
        if size is None:
            break
        total, position = total + int(part.group(1)) * size, part.end()
    if not isinstance(text, str) or position == 0 or position != len(text):
        raise PlanError(
            f"{what}={text!r} is not a duration",
            operation="describe",
            hint="Write a number and a unit from microseconds to weeks, such as '10 seconds' or '1 hour 30 minutes'.",
        )
    return total
