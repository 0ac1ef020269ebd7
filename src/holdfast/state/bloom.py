"""Which hashes a run certainly does not hold, in twelve bits a row.

Invariants:
- No false negatives: a hash that was built in is always said to be possibly there.
- The filter depends on the hashes alone, so one filter serves all buckets of a run.

Blocked: a hash sets four bits of one 64-bit word, so that a test costs one memory access.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    mixed = _mixed(h)
    word = _word(mixed >> np.uint64(32), words)
    bits = np.zeros(words * _WORD_BITS, np.bool_)
    first = word << np.uint64(6)
    for number in range(_BITS_PER_HASH):
        bits[(first | _bit(mixed, number)).view(np.int64)] = True
    return np.packbits(bits, bitorder="little").tobytes()


@dataclass(frozen=True)
class Probes:
    """Hashes made ready to be tested against many filters."""

    high: Words  # picks the word, whatever the filter's length
    mask: Words  # the bits that must be set in it

    @classmethod
    def of(cls, h: npt.NDArray[np.int64]) -> Probes:
        """Mix the hashes once."""
        mixed = _mixed(h)
        mask = np.zeros(len(h), np.uint64)
        for number in range(_BITS_PER_HASH):
            mask |= np.uint64(1) << _bit(mixed, number)
        return cls(mixed >> np.uint64(32), mask)

    def at(self, which: npt.NDArray[np.int64] | slice) -> Probes:
        """Some of them."""
        return Probes(self.high[which], self.mask[which])

    def possibly_in(self, bloom: bytes | memoryview | npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each hash, False where the run certainly has no row of it."""
        words: Words = bloom if isinstance(bloom, np.ndarray) else np.frombuffer(bloom, "<u8")
        word = _word(self.high, len(words))
        found: npt.NDArray[np.bool_] = (words[word.view(np.int64)] & self.mask) == self.mask
        return found


def might_contain(
    bloom: bytes | memoryview | npt.NDArray[np.uint64], h: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """For each hash, False where the run certainly has no row of it."""
    return Probes.of(h).possibly_in(bloom)


def _mixed(h: npt.NDArray[np.int64]) -> Words:
    # The hashes of a run share their top bits (its slots), and may be cut to them: all bits are mixed
    # into all others before the high half picks the word and the low half the bits in it.
    mixed = np.ascontiguousarray(h).view(np.uint64) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX_AGAIN
    mixed ^= mixed >> np.uint64(29)
    return mixed


def _word(high: Words, words: int) -> Words:
    return (high * np.uint64(words)) >> np.uint64(32)


def _bit(mixed: Words, number: int) -> Words:
    return (mixed >> np.uint64(6 * number)) & np.uint64(63)
