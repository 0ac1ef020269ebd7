"""What an epoch may take, to the row and the byte."""

from __future__ import annotations

import pytest

from holdfast.core import limits
from holdfast.protocols.admission import Allowance, Offer, admit, holds_back, is_runaway, keeps_out


def test_an_epoch_takes_just_as_much_as_it_may() -> None:
    offers = [Offer(10, 4), Offer(10, 6), Offer(1, 1)]
    assert admit(offers, Allowance(rows=20)) == 2
    assert admit(offers, Allowance(rows=21)) == 3
    assert admit(offers, Allowance(bytes=10)) == 2
    assert admit(offers, Allowance(bytes=9)) == 1
    assert admit(offers, Allowance(bytes=3)) == 1, "at least one, however large"
    assert admit([], Allowance()) == 0


@pytest.mark.parametrize(
    ("judges", "rows", "size"),
    [
        (keeps_out, limits.CYCLE_ROWS_MAX, limits.CYCLE_BYTES_MAX),
        (is_runaway, limits.CYCLE_ROWS_HARD_MAX, limits.CYCLE_BYTES_HARD_MAX),
        (holds_back, limits.UNREAD_ROWS_MAX, limits.UNREAD_BYTES_MAX),
    ],
)
def test_a_bound_may_be_reached_and_not_passed(judges: object, rows: int, size: int) -> None:
    assert callable(judges)
    assert not judges(rows, size)
    assert judges(rows + 1, 0)
    assert judges(0, size + 1)
