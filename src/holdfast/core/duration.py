"""Durations as a user writes them: `"10 seconds"`, `"1 hour"`, `"-5 minutes"`."""

from __future__ import annotations

import re

from holdfast.core.errors import PlanError

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_FORM = re.compile(r"\s*(-?\d+)\s*([a-z]+?)s?\s*")


def microseconds(text: str) -> int:
    """The length of a duration in microseconds.

    >>> microseconds("10 seconds")
    10000000
    >>> microseconds("-5 minutes")
    -300000000
    """
    match = _FORM.fullmatch(text.lower())
    if match is None or match.group(2) not in _UNITS_US:
        raise PlanError(
            f"{text!r} is not a duration",
            operation="parse",
            hint="Write a whole number and a unit, such as '10 seconds', '1 minute' or '2 days'.",
        )
    return int(match.group(1)) * _UNITS_US[match.group(2)]
