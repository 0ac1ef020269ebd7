"""collect_list, collect_set and top_k: the values of a key as a sorted list, of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core import limits
from holdfast.core.errors import InputError
from holdfast.flow.aggregates import Aggregate
from holdfast.flow.collected import Collected, Top
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.sorted_lists import (
    ORDER,
    Lists,
    gathered,
    items_of,
    list_type,
    sizes_of,
    together,
)
from holdfast.state.canonical import Ints


@dataclass(frozen=True)
class CollectList(Accumulator):
    """collect_list(x, by=t): the state is the list."""

    most: int = limits.COLLECTED_VALUES_MAX
    by: bool = False  # whether items have an order of their own beside the value

    at_once: ClassVar[bool] = True
    one_zero: ClassVar[bool] = False  # whether -0.0 is 0.0

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The epoch's values, each with what it is ordered by."""
        x, by = aggregate.expression, aggregate.by
        if by is None:
            return [f"{aggregate.function}({x})"]
        return [f"collect_list(struct({by} as t, {x} as x)) filter (where ({x}) is not null)"]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """With the bound that the aggregate names."""
        assert isinstance(aggregate, Collected)
        return cls(name, ansi, tuple(types), final, aggregate.most, aggregate.by is not None)

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """A list of structs."""
        return (list_type(*self._kinds()),)

    @property
    def descending(self) -> bool:
        """The order of the list."""
        return False

    def merge(self, old: Columns, new: Columns) -> Columns:
        """Take in an epoch's values: as Spark collected them, or as `lift` and `reduce` made lists of them."""
        lists = Lists.of(new[0]) if new[0].type == self.stored[0] else self._collected(new[0])
        return [self._bounded(self._together(Lists.of(old[0]), lists)).array()]

    def combine(self, left: Columns, right: Columns) -> Columns:
        """The values of both."""
        return self.merge(left, right)

    def reduce(self, group: Ints, stored: Columns) -> Columns:
        """All values of a group in one list."""
        lists = Lists.of(stored[0])
        groups = int(group[-1]) + 1 if len(group) else 0
        whole = gathered(groups, group[lists.keys], lists.items, descending=self.descending)
        return [self._bounded(whole).array()]

    def lifts(self, kind: pa.DataType) -> bool:
        value, order = self._kinds()
        return kind == (value if order is None else pa.struct([(ORDER, order), ("x", value)]))

    def lift(self, x: pa.Array) -> Columns:
        columns = x.flatten() if self.by else [x]
        counts = np.asarray(self._counts(columns))
        items = items_of(
            [column.filter(pa.array(counts)) for column in columns], self.stored[0], one_zero=self.one_zero
        )
        return [Lists(counts.astype(np.int64), items).array()]

    def finish(self, state: Columns) -> pa.Array:
        lists = Lists.of(state[0])
        missing = self._missing(lists.sizes)
        try:
            offsets = pa.array(lists.offsets).cast(pa.int32())
            values = lists.values.cast(self.final.value_type)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"aggregate {self.name!r} gives lists of more than 2 GiB in one task and epoch: {error}",
                operation="aggregate",
                hint="Run the flow with more tasks, take less input per epoch, or collect shorter values.",
            ) from error
        return pa.ListArray.from_arrays(offsets, values, type=self.final, mask=missing)

    def _kinds(self) -> tuple[pa.DataType, pa.DataType | None]:
        """The types of a value and of what it is ordered by."""
        item = self.partials[0].value_type
        return (item.field("x").type, item.field(ORDER).type) if self.by else (item, None)

    def _collected(self, lists: pa.Array) -> Lists:
        flat = lists.flatten()
        key = np.repeat(np.arange(len(lists)), sizes_of(lists))
        items = items_of(flat.flatten() if self.by else [flat], self.stored[0], one_zero=self.one_zero)
        return gathered(len(lists), key, items, descending=self.descending)

    def _together(self, old: Lists, new: Lists) -> Lists:
        return together(old, new, descending=self.descending)

    def _counts(self, columns: Columns) -> pa.Array:
        """Which rows have a value."""
        return columns[-1].is_valid()

    def _missing(self, sizes: Ints) -> pa.Array | None:
        """Which lists are null."""
        return None

    def _bounded(self, lists: Lists) -> Lists:
        if len(lists.sizes) and int(lists.sizes.max()) > self.most:
            raise InputError(
                f"aggregate {self.name!r} collects more than {self.most:,} values of one key",
                operation="aggregate",
                hint="Give it a larger max= (the list is written again in every epoch that touches its key), group by"
                " more columns or by windows, or keep only some with hf.top_k.",
            )
        return lists


class CollectSet(CollectList):
    """collect_set(x)"""

    one_zero: ClassVar[bool] = True

    def _bounded(self, lists: Lists) -> Lists:
        return super()._bounded(lists.distinct())


@dataclass(frozen=True)
class TopK(CollectList):
    """top_k(x, k, by=t): the state is the list so far."""

    smallest: bool = False

    one_zero: ClassVar[bool] = True

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The epoch's largest, each with what it is ordered by."""
        assert isinstance(aggregate, Top)
        x, by = aggregate.expression, aggregate.by
        if by is None:
            return [aggregate.sql()]
        pick, row = "min_by" if aggregate.smallest else "max_by", f"struct({by} as t, {x} as x)"
        return [f"{pick}({row}, {row}, {aggregate.k}) filter (where ({by}) is not null)"]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """With its k."""
        assert isinstance(aggregate, Top)
        by = aggregate.by is not None
        return cls(name, ansi, tuple(types), final, aggregate.k, by, aggregate.smallest)

    @property
    def descending(self) -> bool:
        """The order of the list."""
        return not self.smallest

    def _counts(self, columns: Columns) -> pa.Array:
        return columns[0].is_valid()

    def _missing(self, sizes: Ints) -> pa.Array | None:
        """Spark's max_by of no rows is null."""
        return pc.equal(pa.array(sizes), 0)

    def _bounded(self, lists: Lists) -> Lists:
        return lists.first(self.most)
