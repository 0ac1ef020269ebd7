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
    columns = [pa.array(group), *(part for column in items.flatten() for part in _sortable(column))]
    names = [str(number) for number in range(len(columns))]
    direction = "descending" if descending else "ascending"
    by = [(names[0], "ascending"), *((name, direction) for name in names[1:])]
    order = pc.sort_indices(pa.table(columns, names=names), sort_keys=by)
    return Lists(np.bincount(group, minlength=groups), items.take(order))


def together(left: Lists, right: Lists, *, descending: bool) -> Lists:
    """List by list, the items of both."""
    items = pa.concat_arrays([left.items, right.items])
    group = np.concatenate([left.keys, right.keys])
    return gathered(len(left.sizes), group, items, descending=descending)


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


def _sortable(column: pa.Array) -> list[pa.Array]:
    """Columns that Arrow sorts as the order here says: nulls first, floats by their bits, what is nested by its encoding."""
    valid = [column.is_valid().cast(pa.uint8())] if column.null_count else []
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
