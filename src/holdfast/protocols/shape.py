"""Which shape the next epoch's job should have: by its rows, the cores that are there, and the epoch before."""

from __future__ import annotations

from holdfast.core import limits

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


def tasks_for(rows: int, cores: int) -> int:
    """How many tasks share the rows that an epoch reads or closes: no more than can run at once, each with enough to do.

    >>> tasks_for(10_000, 200)
    1
    >>> tasks_for(120_000, 200)
    3
    >>> tasks_for(4_000_000, 2)
    2
    """
    return max(1, min(-(-rows // limits.TASK_ROWS), cores, limits.SLOTS))
