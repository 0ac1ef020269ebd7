"""Lists of values per key in Arrow and NumPy, each in a fixed order, so that equal multisets are equal lists.

The state holds a list of structs per key: `x` is the value, and `t`, where there is one, what it is ordered by. Items ascend,
or descend, by `t` and then by `x`. The order is total but for values whose bits are equal anyway: numbers and text have
their own, where -0.0 comes before 0.0 and NaN, of which there is one, last; structs and arrays have that of their encoding;
nulls are smaller than all else. So a list depends on its values alone, and not on how they came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.canonical import Bools, Ints, same_at
from holdfast.state.encode import encode, normalised

VALUE, ORDER = "x", "t"


def list_type(value: pa.DataType, order: pa.DataType | None) -> pa.DataType:
    """What the state holds. Offsets are wide: a task's lists together may be longer than any of its columns."""
    fields = [] if order is None else [(ORDER, _wide(order))]
    return pa.large_list(pa.struct([*fields, (VALUE, _wide(value))]))


@dataclass(frozen=True)
class Lists:
    """The items of many lists, one list after the other, and how many each has."""

    sizes: Ints
    items: pa.StructArray

    @classmethod
    def of(cls, lists: pa.Array) -> Lists:
        """Lists as they are stored; a null is an empty list."""
        return cls(sizes_of(lists), lists.flatten())

    @property
    def keys(self) -> Ints:
        """The number of the list that each item is in."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def values(self) -> pa.Array:
        """The values alone."""
        return self.items.flatten()[-1]

    @property
    def offsets(self) -> Ints:
        """Where each list begins, and the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def array(self) -> pa.Array:
        """As they are stored."""
        kind = pa.large_list(self.items.type)
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), self.items, type=kind)

    def where(self, kept: Bools) -> Lists:
        """With these items only."""
        sizes = np.bincount(self.keys[kept], minlength=len(self.sizes))
        return Lists(sizes, self.items.filter(pa.array(kept)))

    def first(self, most: int) -> Lists:
        """At most so many items of each list, the first ones."""
        rank = np.arange(len(self.items)) - np.repeat(self.offsets[:-1], self.sizes)
        return self if not len(rank) or int(self.sizes.max()) <= most else self.where(rank < most)

    def distinct(self) -> Lists:
        """Each value once; equal ones are neighbours."""
        key, at = self.keys, np.arange(1, len(self.items))
        repeated = np.zeros(len(self.items), np.bool_)
        repeated[1:] = (key[1:] == key[:-1]) & same_at([self.values], at, [self.values], at - 1)
        return self.where(~repeated) if repeated.any() else self


def sizes_of(lists: pa.Array) -> Ints:
    """How many items each list has."""
    sizes: Ints = np.asarray(pc.fill_null(pc.list_value_length(lists).cast(pa.int64()), 0))
    return sizes


def gathered(groups: int, group: Ints, items: pa.StructArray, *, descending: bool) -> Lists:
    """Items by the number of their list, in any order, as sorted lists."""
    parts = (_sortable(column, bool(column.null_count)) for column in items.flatten())
    columns = [pa.array(group), *(column for part in parts for column in part)]
    names = [str(number) for number in range(len(columns))]
    direction = "descending" if descending else "ascending"
    by = [(names[0], "ascending"), *((name, direction) for name in names[1:])]
    order = pc.sort_indices(pa.table(columns, names=names), sort_keys=by)
    return Lists(np.bincount(group, minlength=groups), items.take(order))


def together(left: Lists, right: Lists, *, descending: bool) -> Lists:
    """List by list, the items of both. Each of `right` is looked for in its list of `left`; those of `left` are copied."""
    if not len(left.items) or not len(right.items):
        return Lists(left.sizes + right.sizes, left.items if len(left.items) else right.items)
    begins, key = left.offsets[:-1], right.keys
    at = _places(left.items, right.items, begins[key], begins[key] + left.sizes[key], descending)
    # Items of `right` stand in the order of their lists, and in order in each, so each moves those behind it by one place.
    mine = np.ones(len(left.items) + len(right.items), np.bool_)
    mine[at + np.arange(len(right.items))] = False
    source = np.empty(len(mine), np.int64)
    source[mine] = np.arange(len(left.items))
    source[~mine] = len(left.items) + np.arange(len(right.items))
    items = pa.concat_arrays([left.items, right.items]).take(pa.array(source))
    return Lists(left.sizes + right.sizes, items)


def _places(items: pa.StructArray, wanted: pa.StructArray, low: Ints, high: Ints, descending: bool) -> Ints:
    """Where each wanted item would stand between its two bounds: behind all that are not behind it."""
    low, high = low.copy(), high.copy()
    pairs = list(zip(items.flatten(), wanted.flatten(), strict=True))
    nullable = [bool(one.null_count or other.null_count) for one, other in pairs]
    there, here = (
        [part for pair, may in zip(pairs, nullable, strict=True) for part in _sortable(pair[side], may)]
        for side in (0, 1)
    )
    while (rows := np.flatnonzero(low < high)).size:  # bounded: the logarithm of the longest list
        middle = (low[rows] + high[rows]) // 2
        before = _before(here, rows, there, middle, descending)
        high[rows[before]] = middle[before]
        low[rows[~before]] = middle[~before] + 1
    return low


def _before(
    left: list[pa.Array], left_rows: Ints, right: list[pa.Array], right_rows: Ints, descending: bool
) -> Bools:
    """Pair by pair, whether the item at a row of `left` stands before that at a row of `right`."""
    before, tied = np.zeros(len(left_rows), np.bool_), np.ones(len(left_rows), np.bool_)
    less = pc.greater if descending else pc.less
    for one, other in zip(left, right, strict=True):
        mine, theirs = one.take(pa.array(left_rows)), other.take(pa.array(right_rows))
        before |= tied & np.asarray(pc.fill_null(less(mine, theirs), False))
        tied &= np.asarray(pc.fill_null(pc.equal(mine, theirs), True))
    return before


def items_of(columns: Sequence[pa.Array], kind: pa.DataType, *, one_zero: bool) -> pa.StructArray:
    """Values, behind what they are ordered by, as items of a stored type; with `one_zero`, -0.0 becomes 0.0."""
    fields = list(kind.value_type)
    *orders, values = (column.cast(field.type) for column, field in zip(columns, fields, strict=True))
    made = [normalised(column) if pa.types.is_floating(column.type) else column for column in orders]
    if pa.types.is_floating(values.type):
        # Of all NaN one stays either way: bits that nobody can see must not settle an order.
        values = (
            normalised(values)
            if one_zero
            else pc.if_else(pc.is_nan(values), pa.scalar(np.nan, values.type), values)
        )
    return pa.StructArray.from_arrays([*made, values], fields=fields)


def _sortable(column: pa.Array, nullable: bool) -> list[pa.Array]:
    """Columns that Arrow sorts as the order here says: nulls first, floats by their bits, what is nested by its encoding."""
    valid = [column.is_valid().cast(pa.uint8())] if nullable else []
    kind = column.type
    if pa.types.is_nested(kind):
        return [*valid, encode(column)]
    if pa.types.is_boolean(kind):
        return [*valid, column.cast(pa.uint8())]
    if not pa.types.is_floating(kind):
        return [*valid, column]
    bits = pc.fill_null(column.view(pa.int64() if kind.bit_width == 64 else pa.int32()), 0).to_numpy()
    # Negative numbers ascend while their bits, as a signed number, descend.
    return [*valid, pa.array(np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits))]


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind
