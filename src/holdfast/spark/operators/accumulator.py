"""What an aggregate stores per key, and how an epoch's part is merged into it.

An accumulator is the Spark SQL that computes an epoch's partial values, the merge of those with the
stored ones, and the final value. A new one is a class with these three in a file of its own, and a line in the table of
`accumulators.py`. Partials come from the Spark SQL function of the same name, so types,
nulls and NaN are Spark's; the merge keeps them so. A key that has no state yet has nulls as stored
values. What is stored has the types of the partials, unless the accumulator says otherwise. No accumulator
loops over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from holdfast.core.errors import InputError
from holdfast.core.json import Json
from holdfast.flow.aggregates import Aggregate
from holdfast.state.canonical import Ints

Columns = list[pa.Array]


@dataclass(frozen=True)
class Accumulator:
    """One aggregate of one stage, bound to its types."""

    name: str
    ansi: bool
    partials: tuple[pa.DataType, ...]
    final: pa.DataType  # of the aggregate's value

    # Whether `reduce` takes all rows of a group at once; else they are combined two by two.
    at_once: ClassVar[bool] = False

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The Spark SQL that computes an epoch's part of an aggregate."""
        return [aggregate.sql()]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """The accumulator of an aggregate whose partials have these types; raises `PlanError` for those it cannot take."""
        return cls(name, ansi, tuple(types), final)

    @property
    def options(self) -> Json:
        """Its own fields that `finish` needs, for whoever reads the state later and knows only what the ledger kept."""
        return {}

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """The types of its state columns."""
        return self.partials

    def merge(self, old: Columns, new: Columns) -> Columns:
        """Stored values after an epoch."""
        raise NotImplementedError

    def combine(self, left: Columns, right: Columns) -> Columns:
        """Two stored values as one, where the rows of `left` came first; none is missing."""
        return self.merge(left, right)

    def reduce(self, group: Ints, stored: Columns) -> Columns:
        """One row of stored values per group; `group` numbers the groups from 0, neighbours first. See `at_once`."""
        raise NotImplementedError

    def lifts(self, kind: pa.DataType) -> bool:
        """Whether `lift` can take a column of this type; where there is a `by`, a struct of it (t) and the value (x)."""
        return False

    def lift(self, x: pa.Array) -> Columns:
        """The partial values of single rows, to be combined like stored ones."""
        raise NotImplementedError

    def finish(self, state: Columns) -> pa.Array:
        """The aggregate's value."""
        return state[0]

    def overflow(self, where: pa.Array | np.ndarray) -> None:
        """Refuse an overflow where Spark would; the caller goes on with Spark's other behaviour."""
        if self.ansi and bool(np.any(np.asarray(where))):
            raise InputError(
                f"aggregate {self.name!r} overflows {self.final}",
                operation="aggregate",
                hint="Cast its argument to a wider decimal or to double.",
            )
