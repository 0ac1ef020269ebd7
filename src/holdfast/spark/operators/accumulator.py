"""What an aggregate stores per key, and how an epoch's part is merged into it.

An accumulator is the Spark SQL that computes an epoch's partial values, the merge of those with the
stored ones, and the final value. Partials come from the Spark SQL function of the same name, so types,
nulls and NaN are Spark's; the merge keeps them so. A key that has no state yet has nulls as stored
values. What is stored has the types of the partials, unless the accumulator says otherwise. No accumulator
loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.core.errors import InputError

Columns = list[pa.Array]


@dataclass(frozen=True)
class Accumulator:
    """One aggregate of one stage, bound to its types."""

    name: str
    ansi: bool
    partials: tuple[pa.DataType, ...]
    final: pa.DataType  # of the aggregate's value

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

    def lifts(self, kind: pa.DataType) -> bool:
        """Whether `lift` can take a column of this type."""
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
