from __future__ import annotations

import numpy as np
import pytest

from holdfast.core import limits
from holdfast.state.bloom import build, might_contain
from unit.state.helpers import mixed


@pytest.mark.parametrize("cut", [0, 40, 56])
@pytest.mark.parametrize("rows", [1, 5, 1000, 50_000])
def test_no_hash_that_is_there_is_excluded(rows, cut):
    h = mixed(np.arange(rows)) & -(1 << cut)
    bloom = build(h)
    assert might_contain(bloom, h).all()
    assert might_contain(memoryview(bloom), h).all()
    assert might_contain(np.frombuffer(bloom, "<u8"), h).all()


@pytest.mark.parametrize("shift", [0, 12], ids=["all slots", "one slot"])
def test_few_hashes_that_are_not_there_pass(shift):
    h = mixed(np.arange(200_000)) >> shift
    passed = might_contain(build(h[:100_000]), h[100_000:])
    assert passed.mean() < 0.04


def test_size_follows_the_rows():
    assert len(build(np.zeros(0, np.int64))) == 8
    assert len(build(np.arange(64_000))) * 8 == 64_000 * limits.BLOOM_BITS_PER_KEY


def test_an_empty_run_excludes_everything():
    assert not might_contain(build(np.zeros(0, np.int64)), np.arange(10)).any()
