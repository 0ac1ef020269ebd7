"""Which rows of two tables are the same row: equal in every exact column, close in every double. Columns at a time.

Doubles are close when they differ by at most `TOLERANCE`, relative or absolute; NaN, the infinities and null equal only
themselves. Closeness is not transitive, so rows that agree in all exact columns are cut where the next greater double
lies further away. Where a group that is left spans more than the tolerance (seconds since 1970 are a billionth apart),
its rows are paired in the order of their doubles if both tables have as many of them and every pair is close, and else
compared exactly.

Structs count by their fields, lists and maps by their entries in order: the work grows with the longest list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

TOLERANCE = 1e-9

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def numbered(first: pa.Table, second: pa.Table, ranks: Integers) -> tuple[Integers, Integers]:
    """A number for every row of two tables with the same columns; the same number for the same row.

    `ranks` says of all rows, those of `first` before those of `second`, in which order they came: of equal rows, the
    earliest are paired with the earliest.
    """
    columns = [
        pa.chunked_array([*one.chunks, *other.chunks], one.type)
        for one, other in zip(first.columns, second.columns, strict=True)
    ]
    with np.errstate(over="ignore"):
        numbers = _numbers(columns, first.num_rows + second.num_rows, first.num_rows, ranks)
    return numbers[: first.num_rows], numbers[first.num_rows :]


def _numbers(columns: Sequence[pa.ChunkedArray], count: int, split: int, ranks: Integers) -> Integers:
    numbers, doubles = np.zeros(count, np.int64), []
    if count == 0:
        return numbers
    for column in columns:
        for leaf in _leaves(column.combine_chunks()):
            if kinds.is_floating(leaf.type):
                special, values = _parts(leaf)
                numbers = _both(numbers, special)
                doubles.append(values)
            else:
                numbers = _both(numbers, _codes(leaf))
    groups = 0
    while (found := int(numbers.max()) + 1) != groups:
        groups = found
        for values in doubles:
            numbers = _cut(numbers, values)
    return _untangled(numbers, doubles, split, ranks) if doubles else numbers


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Columns without structure that are equal where `column` is."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(column.storage)
    elif kinds.is_dictionary(kind):
        yield from _leaves(column.dictionary_decode())
    elif kinds.is_run_end_encoded(kind):
        yield from _leaves(pc.run_end_decode(column))
    elif kinds.is_struct(kind):
        yield column.is_valid()
        for part in column.flatten():
            yield from _leaves(part)
    elif kinds.is_map(kind):
        entries = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        yield from _leaves(column.cast(pa.list_(entries)))
    elif kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        yield from _entries(column.cast(pa.large_list(kind.value_type)))
    elif kinds.is_nested(kind):
        raise TypeError(f"values of type {kind} cannot be compared")
    else:
        yield column


def _entries(lists: pa.LargeListArray) -> Iterator[pa.Array]:
    """The lengths, then the first entries of all lists, the second ones, and so on."""
    lengths = pc.list_value_length(lists)
    yield lengths
    known = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy()[:-1]
    for position in range(int(known.max(initial=0))):
        yield from _leaves(lists.values.take(pa.array(starts + position, mask=known <= position)))


def _codes(leaf: pa.Array) -> Integers:
    indices = leaf.dictionary_encode(null_encoding="encode").indices
    codes: Integers = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _parts(leaf: pa.Array) -> tuple[Integers, Doubles]:
    """What is special about doubles (null, NaN, infinite), and their values, 0 where something is."""
    values = pc.fill_null(leaf.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    null = leaf.is_null().to_numpy(zero_copy_only=False)
    special = np.select([null, np.isnan(values), np.isposinf(values), np.isneginf(values)], [1, 2, 3, 4], 0)
    return special.astype(np.int64), np.where(special == 0, values, 0.0)


def _both(numbers: Integers, codes: Integers) -> Integers:
    """Numbers from 0 on that are equal where both are."""
    found = np.unique(numbers * (codes.max() + 1) + codes, return_inverse=True)[1]
    return found.astype(np.int64)


def _close(left: Doubles, right: Doubles) -> Flags:
    close: Flags = np.abs(left - right) <= TOLERANCE * np.maximum(
        1.0, np.maximum(np.abs(left), np.abs(right))
    )
    return close


def _cut(numbers: Integers, values: Doubles) -> Integers:
    """The groups, cut where the next greater value is not close."""
    order = np.lexsort((values, numbers))
    group, value = numbers[order], values[order]
    cuts = (group[1:] != group[:-1]) | ~_close(value[1:], value[:-1])
    made = np.empty_like(numbers)
    made[order] = np.concatenate([[0], np.cumsum(cuts)])
    return made


def _untangled(numbers: Integers, doubles: Sequence[Doubles], split: int, ranks: Integers) -> Integers:
    """The groups, with those told apart in which not every row is close to every other."""
    loose = _loose(numbers, doubles)[numbers]
    if not loose.any():
        return numbers
    order = np.lexsort((ranks, *reversed(doubles), numbers))
    first, second = (order[loose[order] & side] for side in (order < split, order >= split))
    paired = _paired(numbers, doubles, first, second)
    apart = numbers
    for values in doubles:
        apart = _both(apart, np.where(loose & ~paired[numbers], np.unique(values, return_inverse=True)[1], 0))
    unused = int(apart.max()) + 1
    for side in (first, second):
        rows = side[paired[numbers[side]]]
        apart[rows] = unused + np.arange(len(rows))
    return apart


def _loose(numbers: Integers, doubles: Sequence[Doubles]) -> Flags:
    """Of every group, whether its least and its greatest value of some column are not close."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    loose = np.zeros(len(starts), np.bool_)
    for values in doubles:
        sorted_by_group = values[order]
        low, high = (pick.reduceat(sorted_by_group, starts) for pick in (np.minimum, np.maximum))
        loose |= ~_close(low, high)
    return loose


def _paired(numbers: Integers, doubles: Sequence[Doubles], first: Integers, second: Integers) -> Flags:
    """Of every group, whether rows of both tables, in their order, are pairs that are close."""
    size = int(numbers.max()) + 1
    count, other = (np.bincount(numbers[rows], minlength=size) for rows in (first, second))
    paired: Flags = (count == other) & (count > 0)
    left, right = (rows[paired[numbers[rows]]] for rows in (first, second))
    for values in doubles:
        paired[numbers[left[~_close(values[left], values[right])]]] = False
    return paired
