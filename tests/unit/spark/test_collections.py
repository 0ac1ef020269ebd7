"""What a Python worker has imported is not looked at again by every collection of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast.core.crashpoints import NO_ORDERS
from holdfast.spark.task import inside_task, keep_out_of_collections


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    keep_out_of_collections.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_there_after_the_first_task_is_left_alone_and_what_comes_later_is_not() -> None:
    with inside_task(NO_ORDERS):
        assert not gc.get_freeze_count()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    assert len(gc.get_objects()) < frozen / 10
    later: list[object] = []
    with inside_task(NO_ORDERS):
        pass
    assert gc.get_freeze_count() <= frozen, "once in a process"
    assert any(one is later for one in gc.get_objects())
