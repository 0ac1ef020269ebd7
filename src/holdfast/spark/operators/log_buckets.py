"""Numbers counted in buckets whose width follows their size: a sketch for percentiles, in integers only.

A double's bits are its sign, its power of two and where it lies between that and the next. The bucket of a number is its power
of two and the first `bits` of the rest, so there are 2**bits buckets of equal width per power of two, and the middle of a
bucket is within 2**-(bits + 1) of every number in it, relative to the number. No logarithm is taken: the buckets are the
same on every machine, bit by bit.

A sketch is a list of buckets and counts, ascending, each bucket once. It is a function of the numbers as a multiset, so
order and split do not matter, and the sum of two sketches is the sketch of all the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.canonical import Ints, group_starts

Floats = npt.NDArray[np.float64]

SKETCH_TYPE = pa.large_list(pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
BUCKET_BYTES = 12

_FRACTION_BITS = 52
_INFINITE = 0x7FF  # the power of two of infinity, and of NaN
_HALF = 1 << 31


def bits_for(error: float) -> int:
    """How many bits keep a relative error.

    >>> bits_for(0.01), bits_for(0.001), bits_for(0.5)
    (6, 9, 0)
    """
    bits = 0
    while 2.0 ** -(bits + 1) > error:
        bits += 1
    return bits


def buckets_of(numbers: Floats, bits: int) -> Ints:
    """The bucket of each number: 0 for zero and what is next to it, negative for negative ones, NaN above infinity."""
    magnitude = np.abs(numbers).view(np.int64)
    bucket = magnitude >> (_FRACTION_BITS - bits)
    bucket[bucket < 1 << bits] = 0  # numbers below the smallest power of two have no bits to be told apart by
    signed = np.where(np.signbit(numbers), -bucket, bucket)
    return np.where(np.isnan(numbers), (_INFINITE << bits) + 1, signed)


def middles(buckets: Ints, bits: int) -> Floats:
    """The number that stands for each bucket."""
    magnitude = np.abs(buckets)
    shift = _FRACTION_BITS - bits
    middle = ((magnitude << shift) + (1 << (shift - 1))).view(np.float64)
    middle = np.where(magnitude == _INFINITE << bits, np.inf, middle)
    signed = np.where(buckets < 0, -middle, np.where(buckets == 0, 0.0, middle))
    return np.where(buckets > _INFINITE << bits, np.nan, signed)


@dataclass(frozen=True)
class Sketches:
    """The buckets of many sketches, one sketch after the other, and how many each has."""

    sizes: Ints
    bucket: Ints
    count: Ints

    @classmethod
    def of(cls, stored: pa.Array) -> Sketches:
        """Sketches as they are stored; a null is an empty one."""
        bucket, count = (np.asarray(column).astype(np.int64) for column in stored.flatten().flatten())
        return cls(np.asarray(pc.fill_null(pc.list_value_length(stored), 0)).astype(np.int64), bucket, count)

    @classmethod
    def counted(cls, sketches: int, key: Ints, bucket: Ints, count: Ints) -> Sketches:
        """Buckets in any order, by the number of their sketch: each once, with the sum of its counts."""
        code = (key << 32) + (bucket + _HALF)
        order = np.argsort(code, kind="stable")
        code = code[order]
        starts = group_starts(code)
        total = np.add.reduceat(count[order], starts) if len(starts) else count
        key, bucket = code[starts] >> 32, (code[starts] & ((1 << 32) - 1)) - _HALF
        return cls(np.bincount(key, minlength=sketches), bucket, total)

    @property
    def keys(self) -> Ints:
        """The number of the sketch that each bucket is in."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def array(self) -> pa.Array:
        """As they are stored."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        columns = [pa.array(self.bucket.astype(np.int32)), pa.array(self.count)]
        items = pa.StructArray.from_arrays(columns, fields=list(SKETCH_TYPE.value_type))
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=SKETCH_TYPE)

    def plus(self, other: Sketches) -> Sketches:
        """Sketch by sketch, the counts of both."""
        pairs = ((self.keys, other.keys), (self.bucket, other.bucket), (self.count, other.count))
        return Sketches.counted(len(self.sizes), *(np.concatenate(pair) for pair in pairs))

    def percentiles(self, ranks: Sequence[float], bits: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """A row per sketch and a column per rank; and which sketches have no numbers.

        Positions and what lies between them are those of Spark's `percentile`, in the same order of operations.
        """
        through = np.concatenate([[0], np.cumsum(self.count)])
        ends = np.cumsum(self.sizes)
        before, after = through[ends - self.sizes], through[ends]
        last = np.maximum(after - before - 1, 0)
        value = np.append(middles(self.bucket, bits), np.nan)  # the last is for sketches without numbers
        found = np.empty((len(self.sizes), len(ranks)))
        for column, rank in enumerate(ranks):
            position = rank * last
            lower, upper = np.floor(position), np.ceil(position)
            low, high = (
                value[np.searchsorted(through[1:], before + at.astype(np.int64), side="right")]
                for at in (lower, upper)
            )
            with np.errstate(invalid="ignore", over="ignore"):
                between = low + (position - lower) * (high - low)
            found[:, column] = np.where((lower == upper) | (low == high), low, between)
        return found, after == before
