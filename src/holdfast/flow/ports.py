"""The ports of a stage: by which of them rows leave it."""

from __future__ import annotations

# Its results, rows that came too late, rows from too far in the future.
OUT, LATE, QUARANTINE = "out", "late", "quarantine"


def port_of(port: str, side: int) -> str:
    """The port by which rows of a side go another way: a join's right side has ports of its own."""
    return port if side == 0 else f"{port}_right"


def side_of(port: str) -> int:
    """The side whose rows go by a port."""
    return 1 if port.endswith("_right") else 0
