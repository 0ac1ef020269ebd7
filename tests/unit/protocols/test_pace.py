"""A follower that is late lets an epoch pass, and only then."""

from __future__ import annotations

import pytest

from holdfast.core import limits
from holdfast.protocols.pace import lets_pass_s


@pytest.mark.parametrize("behind_s", [-1.0, 0.0, limits.BEHIND_SHARE_MIN * 2.0, 2.0, 7.0])
def test_who_is_in_step_and_who_is_behind_by_epochs_goes_on_at_once(behind_s: float) -> None:
    assert lets_pass_s(behind_s, 2.0) == 0.0


@pytest.mark.parametrize("behind_s", [0.6, 1.0, 1.9])
def test_who_is_behind_by_part_of_an_epoch_waits_for_its_rest_and_not_for_more_than_another(
    behind_s: float,
) -> None:
    assert 2.0 - behind_s < lets_pass_s(behind_s, 2.0) <= 4.0 - behind_s
