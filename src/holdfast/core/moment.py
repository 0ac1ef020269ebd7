"""Event times as text: microseconds since 1970-01-01 UTC, as a person or another program reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def moment(micros: int | None) -> str | None:
    """A time in ISO 8601, in UTC; one that no calendar holds, as the number it is.

    >>> moment(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    >>> moment(1 << 62)
    '4611686018427387904 us'
    """
    if micros is None:
        return None
    try:
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} us"
    return found.isoformat().replace("+00:00", "Z")
