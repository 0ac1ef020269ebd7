"""The rows of a generator, as a pure function of the recipe and the row's number.

Rows are made in blocks of a fixed size, each from a random generator seeded with the recipe's seed and the
block's number; so they are the same whatever the epochs, the tasks or the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import PlanError
from holdfast.flow.generate import Recipe

BLOCK_ROWS = 8_192

_NUMBERS = 100  # values of a number that is neither a key nor an id
_CENTS = 10_000  # and of one with a fraction, in hundredths
_BYTES_A_VALUE = 16


class Draws:
    """Random numbers that are the same with every version of NumPy: only its raw bits are promised to be."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def shares(self, rows: int) -> np.ndarray:
        """Numbers from 0 up to but without 1."""
        return (self._bits.random_raw(rows) >> np.uint64(11)) * 2.0**-53

    def below(self, bound: int, rows: int) -> np.ndarray:
        """Whole numbers from 0 up to but without a bound."""
        return np.minimum((self.shares(rows) * bound).astype(np.int64), bound - 1)


Maker = Callable[[Draws, np.ndarray, np.ndarray], pa.Array]


@dataclass(frozen=True)
class Columns:
    """Makes blocks of rows."""

    source: str
    recipe: Recipe
    schema: pa.Schema

    def __post_init__(self) -> None:
        unknown = sorted({name for name, _ in self.recipe.keys} - {*self.schema.names})
        if unknown:
            raise PlanError(
                f"keys= of source {self.source!r} names {unknown[0]!r}, which is no column of its schema",
                operation="bind",
                hint=f"The columns are {', '.join(self.schema.names)}.",
            )
        for field in self.schema:
            self._maker(field)

    @property
    def row_bytes(self) -> int:
        """About how large a row is."""
        return _BYTES_A_VALUE * len(self.schema)

    def block(self, number: int) -> pa.RecordBatch:
        """The rows of a block; some of them repeat rows of this block or the one before."""
        if not self.recipe.repeat:
            return self._originals(number)
        rows = self._originals(number)
        if number == 0:
            return rows.take(_chosen(self._repeats(0), np.empty(0, bool), self._choice(0)))
        both = pa.concat_batches([self._originals(number - 1), rows])
        return both.take(_chosen(self._repeats(number), self._repeats(number - 1), self._choice(number)))

    def _originals(self, number: int) -> pa.RecordBatch:
        draws = self._draws(number, 0)
        index = np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
        behind = draws.below(self.recipe.disorder_us + 1, BLOCK_ROWS)
        times = self.recipe.start_us + index * self.recipe.spacing_us - behind
        return pa.RecordBatch.from_arrays(
            [self._maker(field)(draws, index, times) for field in self.schema], schema=self.schema
        )

    def _repeats(self, number: int) -> np.ndarray:
        repeats = self._draws(number, 1).shares(BLOCK_ROWS) < self.recipe.repeat
        if number == 0:
            repeats[0] = False  # nothing is before it
        return repeats

    def _choice(self, number: int) -> np.ndarray:
        return self._draws(number, 2).shares(BLOCK_ROWS)

    def _draws(self, number: int, purpose: int) -> Draws:
        return Draws(self.recipe.seed, number, purpose)

    def _maker(self, field: pa.Field) -> Maker:
        """How a column is filled, by its type."""
        few, kind = dict(self.recipe.keys).get(field.name), field.type
        if pa.types.is_string(kind):
            return _texts(f"{field.name}-", few)
        if pa.types.is_integer(kind):
            few = few if few or pa.types.is_int64(kind) else _NUMBERS
            return lambda draws, index, _: pa.array(_numbers(draws, index, few), pa.int64()).cast(kind)
        if few:
            raise self._unknown(field, "cannot be a key of so many values")
        if pa.types.is_floating(kind):
            return lambda draws, index, _: pa.array(draws.below(_CENTS, len(index)) / 100).cast(kind)
        if pa.types.is_decimal(kind):
            return lambda draws, index, _: _decimals(draws, len(index), kind)
        if pa.types.is_boolean(kind):
            return lambda draws, index, _: pa.array(draws.shares(len(index)) < 0.5)
        if pa.types.is_timestamp(kind):
            return lambda _, index, times: pa.array(times, pa.int64()).cast(kind)
        if pa.types.is_date(kind):
            return lambda _, index, times: pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(kind)
        raise self._unknown(field, "cannot be generated")

    def _unknown(self, field: pa.Field, what: str) -> PlanError:
        return PlanError(
            f"column {field.name!r} of source {self.source!r} is {field.type}, which {what}",
            operation="bind",
            hint="Strings, numbers, booleans, dates and timestamps can be generated; make others in a transform.",
        )


@dataclass(frozen=True)
class Blocks:
    """Runs inside the tasks: makes the blocks whose numbers it is given, cut to a range of rows."""

    columns: Columns
    start: int
    stop: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy():  # a number is a block, not a row
                first = int(number) * BLOCK_ROWS
                begin, end = max(first, self.start), min(first + BLOCK_ROWS, self.stop)
                yield self.columns.block(int(number)).slice(begin - first, end - begin)


def _chosen(repeats: np.ndarray, before: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """By row of a block, which row of the block before and this one together it shows.

    A row that repeats shows one of the rows before it that do not.
    """
    shown = np.arange(len(before), len(before) + len(repeats))
    originals = np.flatnonzero(~np.concatenate([before, repeats]))
    earlier = np.searchsorted(originals, shown)  # how many originals are before each row
    picked = originals[np.minimum((choice * earlier).astype(np.int64), len(originals) - 1)]
    return np.where(repeats & (earlier > 0), picked, shown)


def _numbers(draws: Draws, index: np.ndarray, few: int | None) -> np.ndarray:
    """One of few numbers, or, without a bound, the number of the row."""
    return draws.below(few, len(index)) if few else index


def _texts(prefix: str, few: int | None) -> Maker:
    def make(draws: Draws, index: np.ndarray, _: np.ndarray) -> pa.Array:
        numbers = pa.array(_numbers(draws, index, few), pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(prefix, numbers, "")

    return make


def _decimals(draws: Draws, rows: int, kind: pa.Decimal128Type) -> pa.Array:
    """Up to a hundred, with as many places as the type has, or fewer."""
    places = min(kind.scale, 2)
    precision = kind.precision - kind.scale + places
    unscaled = np.zeros((rows, 2), np.int64)  # of 128 bits, the low ones first
    unscaled[:, 0] = draws.below(10 ** min(2 + places, precision), rows)
    narrow = pa.decimal128(precision, places)
    return pa.Array.from_buffers(narrow, rows, [None, pa.py_buffer(unscaled)]).cast(kind)
