"""How much of its inputs an epoch takes. Bounded by items, rows and bytes; always at least one position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core import limits


@dataclass(frozen=True)
class Offer:
    """One position that an input offers."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class Allowance:
    """The most that an epoch may take of one input."""

    items: int | None = None
    rows: int = limits.EPOCH_ROWS_MAX
    bytes: int = limits.EPOCH_BYTES_MAX


def admit(offers: Sequence[Offer], allowance: Allowance) -> int:
    """How many of the offered positions, in order, an epoch takes.

    >>> admit([Offer(10, 1), Offer(10, 1), Offer(10, 1)], Allowance(rows=25))
    2
    >>> admit([Offer(100, 1), Offer(1, 1)], Allowance(rows=25))
    1
    >>> admit([Offer(1, 1), Offer(1, 1)], Allowance(items=1))
    1
    """
    taken = rows = size = 0
    for offer in offers:
        rows, size = rows + offer.rows, size + offer.bytes
        if taken and (rows > allowance.rows or size > allowance.bytes):
            break
        taken += 1
        if taken == allowance.items:
            break
    return taken


def keeps_out(rows: int, size: int) -> bool:
    """Whether a cycle has so much on its way round that nothing from outside of it is taken."""
    return rows > limits.CYCLE_ROWS_MAX or size > limits.CYCLE_BYTES_MAX


def is_runaway(rows: int, size: int) -> bool:
    """Whether a cycle has more on its way round than it may ever have."""
    return rows > limits.CYCLE_ROWS_HARD_MAX or size > limits.CYCLE_BYTES_HARD_MAX


def holds_back(unread_rows: int, unread_bytes: int) -> bool:
    """Whether a stage must wait for a consumer of its output."""
    return unread_rows > limits.UNREAD_ROWS_MAX or unread_bytes > limits.UNREAD_BYTES_MAX
