"""Which epochs of a rebuild must give again what they gave the first time."""

from __future__ import annotations

import pytest

from holdfast.core.json import Json
from holdfast.runtime.recovery import begins_whole


@pytest.mark.parametrize(
    ("depends", "epoch", "whole"),
    [
        ([], 4, True),  # nothing was open
        ([[600, 4], [900, 5]], 6, True),
        ([[300, 3], [600, 4]], 6, False),  # a window that had begun before what is replayed
    ],
)
def test_an_epoch_is_compared_if_all_that_was_open_before_it_is_replayed(
    depends: list[list[int]], epoch: int, whole: bool
) -> None:
    assert begins_whole({"depends": depends}, epoch, first=4) is whole


def test_the_first_epoch_of_all_depends_on_nothing() -> None:
    assert begins_whole(None, 0, first=0)


@pytest.mark.parametrize("before", [None, {"rows_in": 3}], ids=["forgotten", "under another policy"])
def test_where_it_is_not_known_what_was_open_nothing_is_compared(before: Json | None) -> None:
    assert not begins_whole(before, 5, first=4)
