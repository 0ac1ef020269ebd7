"""The shape of the next job, at the borders."""

from __future__ import annotations

from holdfast.core import limits
from holdfast.protocols.shape import aggregates_first, tasks_for


def test_aggregating_first_begins_where_it_pays() -> None:
    assert aggregates_first(50_000, 6_250)
    assert not aggregates_first(49_999, 1)
    assert not aggregates_first(50_000, 6_251)


def test_tasks_are_never_more_than_there_are_slots() -> None:
    assert tasks_for(10**12, 10**6) == limits.SLOTS
    assert tasks_for(limits.TASK_ROWS + 1, 2) == 2
    assert tasks_for(0, 8) == 1
