"""Sets of values in SQL and NumPy: of each value, 128 bits are kept, and the set is those in ascending order.

The 128 bits are two XXH64 hashes with different seeds, as a dedup keeps of its ids; two values that share them count as
one. A set is a binary value of 16 bytes per member: the two hashes as signed 64-bit numbers, little-endian. Members ascend
by the first hash and then by the second, so equal sets are equal bytes, and order and split do not matter.

Members are taken in by binary search, all at once: the work follows the new ones, and the old ones are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.canonical import Bools, Ints

SET_TYPE = pa.large_binary()
MEMBER_BYTES = 16

# A constant in front changes the seed for all that follows: the second half of 128 bits.
SECOND_SEED = 1

Members = npt.NDArray[np.int64]  # a row of two hashes each


def partial_sql(columns: Sequence[str]) -> str:
    """The members of an epoch; rows in which a column is null have none."""
    words = ", ".join(f"({column}), isnull({column})" for column in columns)
    missing = " or ".join(f"({column}) is null" for column in columns)
    member = f"struct(xxhash64({words}) as a, xxhash64({SECOND_SEED}L, {words}) as b)"
    return f"collect_set(if({missing}, null, {member}))"


def collected(lists: pa.Array) -> pa.Array:
    """Sets from lists of members in any order."""
    flat = pc.list_flatten(lists)
    a, b = (np.asarray(half) for half in flat.flatten())
    key = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
    order = np.lexsort((b, a, key))
    members = np.column_stack([a, b])[order]
    return _Sets(members, np.bincount(key, minlength=len(lists))).array()


def of_single(a: Ints, b: Ints, present: Bools) -> pa.Array:
    """Sets of one member each, empty where there is no value."""
    return _Sets(np.column_stack([a, b])[present], present.astype(np.int64)).array()


def union(left: pa.Array, right: pa.Array) -> pa.Array:
    """Row by row, the members of both; a null is an empty set."""
    ours, theirs = _Sets.of(left), _Sets.of(right)
    starts = np.cumsum(ours.sizes) - ours.sizes
    key = np.repeat(np.arange(len(theirs.sizes)), theirs.sizes)
    at, known = _found(ours.members, starts[key], starts[key] + ours.sizes[key], theirs.members)
    fresh = theirs.members[~known]
    # Fresh members stand in the order of the rows and ascend in each, so each moves those behind it by one place.
    places = at[~known] + np.arange(len(fresh))
    members = np.empty((len(ours.members) + len(fresh), 2), np.int64)
    old = np.ones(len(members), np.bool_)
    old[places] = False
    members[places], members[old] = fresh, ours.members
    return _Sets(members, ours.sizes + np.bincount(key[~known], minlength=len(ours.sizes))).array()


def sizes(sets: pa.Array) -> pa.Array:
    """How many members there are."""
    return pc.divide(pc.fill_null(pc.binary_length(sets), 0), MEMBER_BYTES)


@dataclass(frozen=True)
class _Sets:
    """The members of many sets, one set after the other, and how many each has."""

    members: Members
    sizes: Ints

    @classmethod
    def of(cls, sets: pa.Array) -> _Sets:
        filled = pc.fill_null(sets, pa.scalar(b"", SET_TYPE))
        _, offsets, data = filled.buffers()
        at = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
        if not len(filled) or at[0] == at[-1]:
            return cls(np.empty((0, 2), np.int64), np.zeros(len(filled), np.int64))
        numbers = np.frombuffer(data, np.int64, (at[-1] - at[0]) // 8, at[0])
        return cls(numbers.reshape(-1, 2), np.diff(at) // MEMBER_BYTES)

    def array(self) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64) * MEMBER_BYTES
        data = pa.py_buffer(np.ascontiguousarray(self.members))
        return pa.LargeBinaryArray.from_buffers(
            SET_TYPE, len(self.sizes), [None, pa.py_buffer(offsets), data]
        )


def _found(members: Members, low: Ints, high: Ints, wanted: Members) -> tuple[Ints, Bools]:
    """Where each wanted member stands, or would stand, between its two bounds; and whether it is there."""
    end, low, high = high, low.copy(), high.copy()
    while (rows := np.flatnonzero(low < high)).size:  # bounded: the logarithm of the largest set
        middle = (low[rows] + high[rows]) // 2
        before = _less(members[middle], wanted[rows])
        low[rows[before]] = middle[before] + 1
        high[rows[~before]] = middle[~before]
    known = np.zeros(len(wanted), np.bool_)
    inside = np.flatnonzero(low < end)
    known[inside] = (members[low[inside]] == wanted[inside]).all(axis=1)
    return low, known


def _less(left: Members, right: Members) -> Bools:
    less: Bools = (left[:, 0] < right[:, 0]) | ((left[:, 0] == right[:, 0]) & (left[:, 1] < right[:, 1]))
    return less
