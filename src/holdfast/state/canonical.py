"""When two keys are one key, and in which order rows stand.

Invariants:
- Nulls equal nulls, NaN equals NaN, -0.0 equals 0.0; nothing else is equal that Arrow calls different.
- The order is by bucket, then by hash as a signed number, then by key, then by age; it depends on the
  rows and not on how they came in.
- Different keys may share a hash: a hash only ever narrows down, the key columns decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core import limits
from holdfast.state.encode import encode, normalised

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# NumPy sorts 16-bit numbers by radix, in linear time; beyond that many buckets a full sort is needed.
_RADIX_CODES_MAX = 1 << 16


def slot_of(h: Ints) -> Ints:
    """The slot of a hash: slots ascend as signed hashes do."""
    return (h >> limits.SLOT_SHIFT_BITS) + limits.SLOTS // 2


def slot_floor(slot: int) -> int:
    """The smallest hash of a slot; one past the largest hash for the slot after the last."""
    return (slot - limits.SLOTS // 2) << limits.SLOT_SHIFT_BITS


def in_slots(h: Ints, slots: tuple[int, int]) -> Bools:
    """Which hashes are of the slots from `slots[0]` to before `slots[1]`."""
    inside = h >= slot_floor(slots[0])
    return inside if slots[1] >= limits.SLOTS else inside & (h < slot_floor(slots[1]))


def comparable(column: pa.Array) -> pa.Array:
    """A column whose values can be sorted, and are equal exactly if the keys are."""
    if pa.types.is_nested(column.type):
        return encode(column)
    if pa.types.is_floating(column.type):
        return normalised(column)
    return column


def same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bools:
    """Row by row, whether two keys of several columns are one key."""
    equal = np.ones(len(left[0]) if left else 0, np.bool_)
    for one, other in zip(left, right, strict=True):
        equal &= _same_column(one, other)
    return equal


def same_at(left: Sequence[pa.Array], left_rows: Ints, right: Sequence[pa.Array], right_rows: Ints) -> Bools:
    """Pair by pair, whether the key at a row of `left` is that at a row of `right`; no columns, one key."""
    if not left:
        return np.ones(len(left_rows), np.bool_)
    return same(_take(left, left_rows), _take(right, right_rows))


def ascends_in_order(bucket: Ints, h: Ints) -> bool:
    """Whether rows stand by bucket, then by hash."""
    return _ascends(bucket) and _ascends_within(bucket, h)


def same_as_next(bucket: Ints, h: Ints, keys: Sequence[pa.Array]) -> Bools:
    """For each row of a canonically ordered table but the last, whether its successor is the same row."""
    tied = _ties(bucket, h)
    rows = np.flatnonzero(tied)
    if rows.size:
        tied[rows] = same_at(keys, rows, keys, rows + 1)
    return tied


def canonical_order(bucket: Ints, h: Ints, keys: Sequence[pa.Array], age: Ints | None = None) -> Ints:
    """The permutation that puts rows in order of bucket, hash, key and age."""
    order = _order_by_hash(bucket, h, age)
    tied = _ties(bucket[order], h[order])
    rows = np.flatnonzero(tied)
    if not rows.size:
        return order
    differs = ~same_at(keys, order[rows], keys, order[rows + 1])
    if differs.any():
        group = np.concatenate([[0], np.cumsum(~tied)])
        _order_groups(order, group, np.unique(group[rows[differs]]), keys)
    return order


def _order_groups(order: Ints, group: Ints, mixed: Ints, keys: Sequence[pa.Array]) -> None:
    """Sort by key, in place, the groups of equal hashes in which keys differ; age breaks the ties."""
    holds_mixed = np.zeros(int(group[-1]) + 1, np.bool_)
    holds_mixed[mixed] = True
    places = np.flatnonzero(holds_mixed[group])
    members = order[places]
    columns = [pa.array(group[places])]
    columns += [comparable(column) for column in _take(keys, members)]
    columns.append(pa.array(np.arange(len(places))))
    names = [str(number) for number in range(len(columns))]
    by = [(name, "ascending") for name in names]
    order[places] = members[pc.sort_indices(pa.table(columns, names=names), sort_keys=by).to_numpy()]


def _order_by_hash(bucket: Ints, h: Ints, age: Ints | None) -> Ints:
    if age is not None and not _ascends(age):
        by_age = np.argsort(age, kind="stable")
        return by_age[_order_by_hash(bucket[by_age], h[by_age], age[by_age])]
    # Rows with an age are mostly sorted runs one after the other, which a stable sort merges in linear
    # time; other rows are in no order, which the default sort handles with vector instructions.
    kind = "quicksort" if age is None else "stable"
    if len(h) == 0 or bucket.min() == bucket.max():
        return _argsort(h, kind)
    if ascends_in_order(bucket, h):
        return np.arange(len(h))
    order = _argsort(h, kind)
    return order[_stable_by_few(bucket[order])]


def _argsort(h: Ints, kind: str) -> Ints:
    if _ascends(h):
        return np.arange(len(h))
    return np.argsort(h, kind="stable") if kind == "stable" else np.argsort(h)


def _stable_by_few(bucket: Ints) -> Ints:
    distinct = np.unique(bucket)
    if len(distinct) > _RADIX_CODES_MAX:
        return np.argsort(bucket, kind="stable")
    codes = np.searchsorted(distinct, bucket).astype(np.uint16)
    return np.argsort(codes, kind="stable")


def group_starts(values: Ints) -> Ints:
    """Where neighbours begin that are equal, in a sorted array."""
    first = np.ones(len(values), np.bool_)
    first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(first)


def _take(keys: Sequence[pa.Array], rows: Ints) -> list[pa.Array]:
    indices = pa.array(rows)
    return [column.take(indices) for column in keys]


def _ascends(values: Ints) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _ascends_within(bucket: Ints, h: Ints) -> bool:
    return bool(((h[1:] >= h[:-1]) | (bucket[1:] != bucket[:-1])).all())


def _ties(bucket: Ints, h: Ints) -> Bools:
    tied: Bools = h[1:] == h[:-1]
    if tied.any():
        tied &= bucket[1:] == bucket[:-1]
    return tied


def _same_column(left: pa.Array, right: pa.Array) -> Bools:
    left, right = _bits(comparable(left)), _bits(comparable(right))
    equal = pc.equal(left, right)
    if equal.null_count:
        equal = pc.fill_null(equal, False)
    result: Bools = equal.to_numpy(zero_copy_only=False)
    if left.null_count and right.null_count:
        both: Bools = pc.and_(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
        result = result | both
    return result


def _bits(column: pa.Array) -> pa.Array:
    """Normalised floats as integers: NaN then equals itself."""
    if not pa.types.is_floating(column.type):
        return column
    return column.view({2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}[column.type.byte_width])
