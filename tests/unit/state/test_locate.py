"""The guess is only a short cut: for any sorted hashes the rows are those of a binary search."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.state.locate import first_not_below

ROWS = 1 << 17
_rng = np.random.default_rng(11)
EVEN = np.sort(_rng.integers(-(2**63), 2**63 - 1, ROWS))
SPREADS = {
    "even": EVEN,
    "half the range": np.sort(_rng.integers(0, 2**62, ROWS)),
    "cut to eight bits": np.sort(EVEN & -(1 << 56)),
    "all equal": np.full(ROWS, 42),
    "crowded at one end": np.sort(np.concatenate([np.arange(ROWS - 5), EVEN[:2], EVEN[-3:]])),
    "with the extremes": np.sort(np.concatenate([EVEN[:-4], [-(2**63)] * 2, [2**63 - 1] * 2])),
    "few rows": EVEN[:100],
}


@pytest.mark.parametrize("name", SPREADS)
def test_rows_are_those_of_a_binary_search(name: str) -> None:
    hashes = SPREADS[name].astype(np.int64)
    present = _rng.choice(hashes, 500)
    around = np.concatenate([present, present - 1, present + 1, _rng.integers(-(2**63), 2**63 - 1, 300)])
    ends = np.array([-(2**63), 2**63 - 1, 0, hashes[0], hashes[-1]])
    needles = np.sort(np.concatenate([around, ends]))
    assert np.array_equal(first_not_below(hashes, needles), np.searchsorted(hashes, needles))


def test_evenly_spread_hashes_are_nearly_all_found_by_the_guess() -> None:
    from holdfast.state.locate import _compared, _guessed

    needles = np.sort(_rng.choice(EVEN, 1_000))
    _, settled = _compared(EVEN, needles, _guessed(EVEN, needles))
    assert settled.mean() > 0.98
