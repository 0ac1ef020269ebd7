"""Which bytes of a mapped run have been found to be as they were written, block by block.

Invariants:
- Nothing of a column is read before the blocks that hold it were checked, once in a process.
- A check costs what is read: rows are turned into blocks, and blocks that were checked are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.core import limits
from holdfast.state.canonical import Ints
from holdfast.storage.checksums import Table, wrong_block


class Blocks:
    """The blocks of one mapped file."""

    def __init__(self, data: pa.Buffer, table: Table, lost: Callable[[str], Exception]) -> None:
        self._data, self._table, self._lost = memoryview(data), table, lost
        self._checked = np.zeros(len(table.sums), np.bool_)
        self.base = int(data.address)
        # What is read to open the file: all but the body.
        self.check(0, table.body[0])
        self.check(table.body[1], int(data.size))

    def check(self, start: int, stop: int) -> None:
        """Bytes from `start` to `stop`."""
        if start < stop:
            size = self._table.block_bytes
            first, last = start // size, (stop - 1) // size
            if not self._checked[first : last + 1].all():
                self._check(first + np.flatnonzero(~self._checked[first : last + 1]))

    def check_each(self, first: Ints, last: Ints) -> None:
        """Many ranges of bytes, by their first and last byte."""
        size, blocks = self._table.block_bytes, len(self._checked)
        begun = np.bincount(first // size, minlength=blocks + 1)
        ended = np.bincount(last // size + 1, minlength=blocks + 1)
        self._check(np.flatnonzero((np.cumsum(begun - ended)[:-1] > 0) & ~self._checked))

    def check_again(self) -> None:
        """All that was found right before."""
        self._check(np.flatnonzero(self._checked))

    def check_rows(self, start: int, stop: int, rows: int, places: Callable[[], tuple[Ints, Ints]]) -> None:
        """Of a range of bytes, those of some rows, whose first and last bytes are asked for only if that pays.

        To find out in which blocks many rows lie costs more than to check all blocks.
        """
        size = self._table.block_bytes
        if self._checked[start // size : -(-stop // size)].all():
            return
        if rows * size > limits.CHECKSUM_ROWS_MAX * (stop - start):
            self.check(start, stop)
        else:
            self.check_each(*places())

    def _check(self, blocks: Ints) -> None:
        wrong = self._table.wrong(self._data, map(int, blocks))
        if wrong is not None:
            raise self._lost(wrong_block(self._table.block_bytes, wrong))
        self._checked[blocks] = True


@dataclass(frozen=True)
class _Part:
    """A buffer in which a row has so many bits, and reaches into the next row's by `over`: ends of strings do."""

    start: int
    stop: int
    bits: int
    over: int = 0

    def check_ranges(self, blocks: Blocks, starts: Ints, stops: Ints) -> None:
        def places() -> tuple[Ints, Ints]:
            first = self.start + (starts * self.bits >> 3)
            return first, self.start + (((stops + self.over) * self.bits - 1) >> 3)

        blocks.check_rows(self.start, self.stop, len(starts), places)

    def check_slice(self, blocks: Blocks, start: int, stop: int) -> None:
        end = self.start + (((stop + self.over) * self.bits + 7) >> 3)
        blocks.check(self.start + (start * self.bits >> 3), min(end, self.stop))


class CheckedColumn:
    """Where a column lies in its file, so that the blocks of some of its rows can be checked before they are read."""

    def __init__(self, column: pa.Array, blocks: Blocks | None) -> None:
        self._blocks = blocks
        if blocks is None:
            return
        kind, buffers = column.type, column.buffers()
        self._ends: tuple[Ints, int, int] | None = None  # where the bytes of strings end, and where they lie
        self._items: tuple[Ints, CheckedColumn] | None = None  # where the items of lists end, and the items
        self._parts: list[_Part] = []
        self._fields: list[CheckedColumn] = []
        self._others: list[tuple[int, int]] = []
        if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
            self._add(buffers[0], 1)
            self._add(buffers[1], kind.bit_width)
        elif wide := _end_bits(kind):
            self._add(buffers[0], 1)
            self._add(buffers[1], wide, over=1)
            ends = np.frombuffer(buffers[1] or bytes(wide // 8), f"<i{wide // 8}")
            if pa.types.is_large_list(kind):
                self._items = ends, CheckedColumn(column.values, blocks)
            elif buffers[2]:
                self._ends = ends, buffers[2].address - blocks.base, buffers[2].size
        elif pa.types.is_struct(kind):
            self._add(buffers[0], 1)
            self._fields = [CheckedColumn(column.field(i), blocks) for i in range(kind.num_fields)]
        else:
            self._others = [_place(buffer, blocks.base) for buffer in buffers if buffer]

    def check_rows(self, rows: Ints) -> None:
        """Before these rows are read."""
        self.check_ranges(rows, rows + 1)

    def check_ranges(self, starts: Ints, stops: Ints) -> None:
        """Before rows of many ranges are read, each from its start to its stop and none of them empty."""
        blocks = self._blocks
        if blocks is None or not starts.size:
            return
        for part in self._parts:
            part.check_ranges(blocks, starts, stops)
        for column in self._fields:
            column.check_ranges(starts, stops)
        self._check_others(blocks)
        if self._items is not None:
            ends, items = self._items
            items.check_ranges(*_filled(ends, starts, stops))
        if self._ends is not None:
            ends, at, length = self._ends

            def places() -> tuple[Ints, Ints]:
                first, last = _filled(ends, starts, stops)
                return at + first, at + last - 1

            blocks.check_rows(at, at + length, len(starts), places)

    def check_slice(self, start: int, stop: int) -> None:
        """Before rows from `start` to `stop` are read."""
        blocks = self._blocks
        if blocks is None or start >= stop:
            return
        for part in self._parts:
            part.check_slice(blocks, start, stop)
        for column in self._fields:
            column.check_slice(start, stop)
        self._check_others(blocks)
        if self._items is not None:
            ends, items = self._items
            items.check_slice(int(ends[start]), int(ends[stop]))
        if self._ends is not None:
            ends, at, _ = self._ends
            blocks.check(at + int(ends[start]), at + int(ends[stop]))

    def _check_others(self, blocks: Blocks) -> None:
        """Columns of other types, such as maps, are checked whole."""
        for start, stop in self._others:
            blocks.check(start, stop)

    def _add(self, buffer: pa.Buffer | None, bits: int, over: int = 0) -> None:
        assert self._blocks is not None
        if buffer:
            self._parts.append(_Part(*_place(buffer, self._blocks.base), bits, over))


def body_of(batch: pa.RecordBatch, base: int) -> tuple[int, int]:
    """From where to where the buffers of a batch lie, in bytes from an address."""
    places = [_place(b, base) for column in batch.columns for b in column.buffers() if b]
    return min(start for start, _ in places), max(stop for _, stop in places)


def check_rows(columns: Sequence[CheckedColumn], rows: Ints) -> None:
    """Before these rows of some columns are read."""
    for column in columns:
        column.check_rows(rows)


def check_slice(columns: Sequence[CheckedColumn], start: int, stop: int) -> None:
    """Before rows from `start` to `stop` of some columns are read."""
    for column in columns:
        column.check_slice(start, stop)


def _end_bits(kind: pa.DataType) -> int:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 32
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    return 64 if wide else 0


def _filled(ends: Ints, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Ranges of rows as ranges of what is in them; where there is nothing in them they are left out."""
    first, last = ends[starts].astype(np.int64), ends[stops].astype(np.int64)
    filled = first < last
    return first[filled], last[filled]


def _place(buffer: pa.Buffer, base: int) -> tuple[int, int]:
    return buffer.address - base, buffer.address - base + buffer.size
