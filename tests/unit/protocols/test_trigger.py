"""When a batch is due, to the millisecond."""

from __future__ import annotations

import pytest

from holdfast.protocols.trigger import is_due


@pytest.mark.parametrize(
    ("now_ms", "every_us", "due"),
    [(1_000, 1, False), (1_001, 1, True), (1_001, 1_500, False), (1_002, 1_500, True), (999, 1_500, True)],
)
def test_a_batch_waits_for_whole_milliseconds_from_the_moment_of_the_last(
    now_ms: int, every_us: int, due: bool
) -> None:
    assert is_due(1_000, now_ms, every_us) is due
