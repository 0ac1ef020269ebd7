"""Where a hash stands among many sorted ones, with few looks into memory.

Binary search touches a cache line or two for each halving, and in a large run nearly all of them are cold.
Hashes are spread evenly, so their rank can be guessed from their value: the guess is off by about the square
root of the rows, each correction takes the square root of what is left, and the last few rows are compared.
What the comparison cannot settle, because hashes are cut or crowded, is searched for as usual: the answer is
that of `numpy.searchsorted` for any sorted hashes.
"""

from __future__ import annotations

import numpy as np

from holdfast.state.canonical import Bools, Ints

# Below this, or with more needles than one in so many rows, a binary search finds its way warm.
_ROWS_MIN = 1 << 16
_ROWS_PER_NEEDLE_MIN = 64

_CORRECTIONS = 3
_WINDOW = 16


def first_not_below(hashes: Ints, needles: Ints) -> Ints:
    """For each needle, the first row whose hash is not smaller; `hashes` ascend."""
    if len(hashes) < max(_ROWS_MIN, _ROWS_PER_NEEDLE_MIN * len(needles)):
        return np.searchsorted(hashes, needles)
    rows, settled = _compared(hashes, needles, _guessed(hashes, needles))
    if not settled.all():
        rows[~settled] = np.searchsorted(hashes, needles[~settled])
    return rows


def lower_bound(values: Ints, wanted: Ints, lo: Ints, hi: Ints) -> Ints:
    """For each wanted value the first row of its `lo` to `hi` that is not smaller, all halved together.

    Values need to ascend only within each such range.
    """
    while (active := lo < hi).any():
        middle = (lo + hi) >> 1
        smaller = active & (values[np.minimum(middle, len(values) - 1)] < wanted)
        lo = np.where(smaller, middle + 1, lo)
        hi = np.where(active & ~smaller, middle, hi)
    return lo


def _guessed(hashes: Ints, needles: Ints) -> Ints:
    """Ranks by value. Floating point is exact enough: neighbours are many units of the last place apart."""
    last = len(hashes) - 1
    low = float(hashes[0])
    gap = max((float(hashes[-1]) - low) / last, 1.0)
    wanted = needles.astype(np.float64)
    guess = np.clip((wanted - low) / gap, 0, last)
    for _ in range(_CORRECTIONS):
        there = hashes[guess.astype(np.int64)].astype(np.float64)
        guess = np.clip(guess + (wanted - there) / gap, 0, last)
    return guess.astype(np.int64)


def _compared(hashes: Ints, needles: Ints, guess: Ints) -> tuple[Ints, Bools]:
    """Rows found by comparing a window around each guess, and whether the window was the right one."""
    start = np.clip(guess - _WINDOW // 2, 0, len(hashes) - _WINDOW)
    window = hashes[start[:, None] + np.arange(_WINDOW)]
    smaller = np.count_nonzero(window < needles[:, None], axis=1)
    below_known = (smaller > 0) | (start == 0)
    above_known = (smaller < _WINDOW) | (start == len(hashes) - _WINDOW)
    return start + smaller, below_known & above_known
