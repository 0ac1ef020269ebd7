"""What is postponed waits for an epoch, or for its time."""

from __future__ import annotations

import time

from holdfast.runtime.postponed import Postponed
from holdfast.runtime.progress import EpochSample, Progress


def test_what_is_postponed_waits_for_the_next_epoch_of_any_stage() -> None:
    progress = Progress()
    progress.epoch_done("a", EpochSample(0, 1, 0.1, 0.01, 0, time.monotonic()), 0, {})
    found = Postponed(progress, 600_000)
    assert not found.is_over()
    progress.epoch_done("b", EpochSample(0, 1, 0.1, 0.01, 0, time.monotonic()), 0, {})
    assert found.is_over()


def test_what_is_postponed_does_not_wait_for_ever() -> None:
    found = Postponed(Progress(), 30)
    assert not found.is_over()
    time.sleep(0.04)
    assert found.is_over()
