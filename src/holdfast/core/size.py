"""Numbers of bytes as text."""

from __future__ import annotations


def size(number: int | None) -> str:
    """Bytes as a person reads them.

    >>> size(1_536)
    '1.5 KiB'
    """
    if number is None:
        return ""
    amount, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"
