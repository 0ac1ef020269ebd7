"""Which hashes a run certainly does not hold, in twelve bits a row.

Invariants:
- No false negatives: a hash that was built in is always said to be possibly there.
- The filter depends on the hashes alone, so one filter serves all buckets of a run.

Blocked: a hash sets four bits of one 64-bit word, so that a test costs one memory access.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.core import limits

_WORD_BITS = 64
_BITS_PER_HASH = 4
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_AGAIN = np.uint64(0xD6E8FEB86659FD93)

Words = npt.NDArray[np.uint64]


def build(h: npt.NDArray[np.int64]) -> bytes:
    """The filter of a run's hashes, as little-endian 64-bit words."""
    words = max(1, -(-len(h) * limits.BLOOM_BITS_PER_KEY // _WORD_BITS))
    word, mixed = _place(h, words)
    bits = np.zeros(words * _WORD_BITS, np.bool_)
    first = word << np.uint64(6)
    for number in range(_BITS_PER_HASH):
        bits[(first | _bit(mixed, number)).view(np.int64)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def might_contain(
    bloom: bytes | memoryview | npt.NDArray[np.uint64], h: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """For each hash, False where the run certainly has no row of it."""
    words: Words = bloom if isinstance(bloom, np.ndarray) else np.frombuffer(bloom, "<u8")
    word, mixed = _place(h, len(words))
    mask = np.zeros(len(h), np.uint64)
    for number in range(_BITS_PER_HASH):
        mask |= np.uint64(1) << _bit(mixed, number)
    found: npt.NDArray[np.bool_] = (words[word.view(np.int64)] & mask) == mask
    return found


def _place(h: npt.NDArray[np.int64], words: int) -> tuple[Words, Words]:
    # The hashes of a run share their top bits (its slots), and may be cut to them: all bits are mixed
    # into all others before the high half picks the word and the low half the bits in it.
    mixed = np.ascontiguousarray(h).view(np.uint64) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX_AGAIN
    mixed ^= mixed >> np.uint64(29)
    return ((mixed >> np.uint64(32)) * np.uint64(words)) >> np.uint64(32), mixed


def _bit(mixed: Words, number: int) -> Words:
    return (mixed >> np.uint64(6 * number)) & np.uint64(63)
