"""Which shape the next epoch's job should have, learnt from the epoch before."""

from __future__ import annotations

# Aggregating before the exchange costs a second, small exchange; it pays where it shrinks the rows at least so.
_SHRINKS_AT_LEAST = 8
_ROWS_AT_LEAST = 50_000


def aggregates_first(rows_before: int, keys_before: int) -> bool:
    """Whether to aggregate before the exchange, given the rows and distinct keys of the last epoch.

    >>> aggregates_first(200_000, 150_000)
    False
    >>> aggregates_first(200_000, 1_000)
    True
    """
    return rows_before >= _ROWS_AT_LEAST and keys_before * _SHRINKS_AT_LEAST <= rows_before
