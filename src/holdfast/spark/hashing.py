"""Spark's xxhash64 over columns, in NumPy: a task that reads files itself finds the keys where Spark would put them.

Invariants: bit for bit what `hash_sql` gives in Spark, for the types that `can_hash` names; a null leaves the hash
as it was, and the flag behind every column then tells it from a value. Loops are over columns and over the words of
short strings, never over rows; long values are taken one by one, which costs less than reading them does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from xxhash import xxh64_intdigest

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE_BYTES = 32

# From this length on, a call for one value costs less than its share of a loop over the words of all: an eighth, measured.
_LONG_BYTES = 512

# Decimals of so many digits are hashed as the number they are without the point.
_LONG_DIGITS = 18


def can_hash(kind: t.DataType) -> bool:
    """Whether a column of a Spark type can be hashed here."""
    if isinstance(kind, t.DecimalType):
        return kind.precision <= _LONG_DIGITS
    return type(kind) in _NARROW | _WIDE | {t.BinaryType} or kind == t.StringType()


_NARROW = {t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.DateType, t.FloatType}
_WIDE = {t.LongType, t.TimestampType, t.TimestampNTZType, t.DoubleType}


def hash_columns(
    columns: Sequence[pa.Array], bits: int = 64, seed: int | None = None
) -> npt.NDArray[np.int64]:
    """The hash of rows by some of their columns; see `hash_sql`, whose words these are."""
    rows = len(columns[0])
    h = np.full(rows, _SEED, np.uint64)
    with np.errstate(over="ignore"):
        if seed is not None:
            h = _hash_long(np.full(rows, seed, np.uint64), h)
        for column in columns:
            h = _hash_nullable(column, h)
    if bits < 64:
        h &= ~np.uint64((1 << (64 - bits)) - 1)
    return h.view(np.int64)


def _hash_nullable(column: pa.Array, seed: Words) -> Words:
    hashed = _hash(column, seed)
    if not column.null_count:
        return _hash_int(np.uint64(0), hashed)
    null = np.asarray(column.is_null())
    return _hash_int(null.astype(np.uint64), np.where(null, seed, hashed))


def _hash(column: pa.Array, seed: Words) -> Words:
    """What lies under nulls is hashed too, and then not used."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(column, seed)
    if pa.types.is_boolean(kind):
        return _hash_int(np.asarray(pc.fill_null(column, False)).astype(np.uint64), seed)
    if pa.types.is_floating(kind):
        return _hash_float(column, seed)
    if pa.types.is_decimal(kind):
        return _hash_long(_decimals(column), seed)
    if kind.bit_width == 64:
        return _hash_long(_raw(column, "u8"), seed)
    signed = _raw(column, f"i{kind.bit_width // 8}")
    return _hash_int(signed.astype(np.int32).view(np.uint32).astype(np.uint64), seed)


def _hash_float(column: pa.Array, seed: Words) -> Words:
    """By the bits, where all zeros are one and all NaN are one."""
    values = _raw(column, f"f{column.type.bit_width // 8}") + 0.0
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    if values.dtype == np.float64:
        return _hash_long(values.view(np.uint64), seed)
    return _hash_int(values.view(np.uint32).astype(np.uint64), seed)


def _raw(column: pa.Array, kind: str) -> npt.NDArray[Any]:
    """A fixed-width column as it lies in memory."""
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _decimals(column: pa.Array) -> Words:
    """The lower halves of 128-bit numbers, which hold all of their digits."""
    halves = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    return halves[column.offset : column.offset + len(column), 0]


def _hash_int(value: Words | np.uint64, seed: Words) -> Words:
    h = (seed + _P5 + np.uint64(4)) ^ (value * _P1)
    return _mixed(_rotated(h, 23) * _P2 + _P3)


def _hash_long(value: Words, seed: Words) -> Words:
    return _mixed(_with_word(seed + _P5 + np.uint64(8), value))


def _hash_bytes(column: pa.Array, seed: Words) -> Words:
    text = column.cast(pa.large_binary())
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    start, length = offsets[:-1], np.diff(offsets)
    is_long = length >= _LONG_BYTES
    if not is_long.any():
        return _hash_short(data, start, length, seed)
    long, short = np.flatnonzero(is_long), np.flatnonzero(~is_long)
    h = np.empty(len(text), np.uint64)
    h[short] = _hash_short(data, start[short], length[short], seed[short])
    h[long] = _hash_long_values(data, start[long], length[long], seed[long])
    return h


def _hash_long_values(data: Bytes, start: Numbers, length: Numbers, seed: Words) -> Words:
    """One value after the other; Spark's xxhash64 of bytes is XXH64 with a seed."""
    pieces = zip(start.tolist(), (start + length).tolist(), seed.tolist(), strict=True)
    found = (xxh64_intdigest(data[first:end].data, own) for first, end, own in pieces)
    return np.fromiter(found, np.uint64, len(start))


def _hash_short(data: Bytes, start: Numbers, length: Numbers, seed: Words) -> Words:
    """All values at once, word by word."""
    if not len(start):
        return seed
    first, end = start[0], start[-1] + length[-1]
    padded = np.append(data[first:end], np.zeros(8, np.uint8))
    # A word begins at every byte: the view overlaps itself, and needs no copy.
    words = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
    start = start - first
    h = _striped(words, start, length, seed) + length.astype(np.uint64)
    at = start + length // _STRIPE_BYTES * _STRIPE_BYTES
    end = start + length
    h, at = _consumed(h, at, end, 8, lambda h, at: _with_word(h, words[at]))
    h, at = _consumed(h, at, end, 4, lambda h, at: _with_half(h, words[at] & np.uint64(0xFFFFFFFF)))
    h, at = _consumed(h, at, end, 1, lambda h, at: _with_byte(h, words[at] & np.uint64(0xFF)))
    return _mixed(h)


def _striped(words: Words, start: Numbers, length: Numbers, seed: Words) -> Words:
    """Strings of a stripe and more go through four lanes; the others start from the seed alone."""
    h = seed + _P5
    rows = np.flatnonzero(length >= _STRIPE_BYTES)
    if not rows.size:
        return h
    own = seed[rows]
    lanes = np.stack([own + _P1 + _P2, own + _P2, own, own - _P1])
    at, left = start[rows], length[rows] // _STRIPE_BYTES
    for number in range(int(left.max())):  # bounded: stripes of the longest string
        on = np.flatnonzero(left > number)
        for lane in range(4):
            word = words[at[on] + number * _STRIPE_BYTES + lane * 8]
            lanes[lane, on] = _rotated(lanes[lane, on] + word * _P2, 31) * _P1
    whole = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    for lane in range(4):
        whole = (whole ^ (_rotated(lanes[lane] * _P2, 31) * _P1)) * _P1 + _P4
    h[rows] = whole
    return h


def _consumed(
    h: Words,
    at: Numbers,
    end: Numbers,
    size: int,
    step: Callable[[Words, Numbers], Words],
) -> tuple[Words, Numbers]:
    """Take in pieces of a size while every string still has one."""
    while True:
        on = at + size <= end
        if on.all() and len(on):
            h, at = step(h, at), at + size
        elif on.any():
            rows = np.flatnonzero(on)
            h, at = h.copy(), at.copy()
            h[rows] = step(h[rows], at[rows])
            at[rows] += size
        else:
            return h, at


def _with_word(h: Words, word: Words) -> Words:
    return _rotated(h ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _with_half(h: Words, half: Words) -> Words:
    return _rotated(h ^ (half * _P1), 23) * _P2 + _P3


def _with_byte(h: Words, byte: Words) -> Words:
    return _rotated(h ^ (byte * _P5), 11) * _P1


def _mixed(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def _rotated(h: Words, by: int) -> Words:
    return (h << np.uint64(by)) | (h >> np.uint64(64 - by))
