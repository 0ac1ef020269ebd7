"""Merging and the like leave the first epoch of whoever leads alone, and begin all the same where there is none."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.core import limits
from holdfast.runtime.context import Runtime
from holdfast.runtime.discovery import Discovery
from holdfast.runtime.progress import EpochSample, Progress
from holdfast.runtime.upkeep import Upkeep


def upkeep(progress: Progress) -> Upkeep:
    return Upkeep(
        cast(Runtime, SimpleNamespace(own_stages=[], progress=progress)), cast(Discovery, SimpleNamespace())
    )


def an_epoch(progress: Progress) -> None:
    progress.epoch_done("s", EpochSample(0, 1, 0.1, 0.01, 0, time.monotonic()), 0, {})


def test_upkeep_begins_with_the_first_epoch_since_the_worker_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPKEEP_AFTER_MS", 600_000)
    progress = Progress()
    an_epoch(progress)  # as a follower
    found = upkeep(progress)
    assert not found.is_to_begin(), "it does not lead"
    found.await_an_epoch()
    assert not found.is_to_begin(), "it has committed nothing since"
    an_epoch(progress)
    assert found.is_to_begin()
    assert not found.is_to_begin(), "it has begun"


def test_upkeep_begins_after_a_moment_where_no_epoch_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPKEEP_AFTER_MS", 50)
    found = upkeep(Progress())
    found.await_an_epoch()
    assert not found.is_to_begin()
    time.sleep(0.06)
    assert found.is_to_begin()
