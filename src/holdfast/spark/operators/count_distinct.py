"""count_distinct(x, ...): the set of the values so far, per key, and its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import InputError
from holdfast.flow.aggregates import Aggregate, DistinctCount
from holdfast.spark.operators import digest_sets
from holdfast.spark.operators.accumulator import Accumulator, Columns

# Of the types of columns, those that a task hashes as Spark does; decimals beside them, up to the digits of a long.
_DECIMAL_DIGITS_MAX = 18


@dataclass(frozen=True)
class CountDistinct(Accumulator):
    """The number of different values; the state is a set of digests of them, of bounded size."""

    most: int = limits.DISTINCT_VALUES_MAX

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The members of the epoch's sets."""
        assert isinstance(aggregate, DistinctCount)
        return [digest_sets.partial_sql(aggregate.columns)]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """With the bound that the aggregate names."""
        assert isinstance(aggregate, DistinctCount)
        return cls(name, ansi, tuple(types), final, aggregate.most)

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """The members, 16 bytes each, in ascending order."""
        return (digest_sets.SET_TYPE,)

    def merge(self, old: Columns, new: Columns) -> Columns:
        """Take in an epoch's members: as Spark collected them, or as `lift` and `combine` made sets of them."""
        sets = new[0] if new[0].type == digest_sets.SET_TYPE else digest_sets.collected(new[0])
        return self.combine(old, [sets])

    def combine(self, left: Columns, right: Columns) -> Columns:
        """The members of both sets."""
        both = digest_sets.union(left[0], right[0])
        if bool(np.any(np.asarray(digest_sets.sizes(both)) > self.most)):
            raise InputError(
                f"aggregate {self.name!r} counts more than {self.most:,} different values of one key",
                operation="aggregate",
                hint="hf.approx_distinct takes 512 bytes per key, however many there are; or give count_distinct a larger"
                f" max= (a value takes {digest_sets.MEMBER_BYTES} bytes, written again in every epoch that touches its key).",
            )
        return [both]

    def lifts(self, kind: pa.DataType) -> bool:
        if pa.types.is_decimal(kind):
            return kind.precision <= _DECIMAL_DIGITS_MAX
        plain = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        return plain or text or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)

    def lift(self, x: pa.Array) -> Columns:
        # Whoever only reads the state has no pyspark, which this needs.
        from holdfast.spark.hashing import hash_columns

        a, b = hash_columns([x]), hash_columns([x], seed=digest_sets.SECOND_SEED)
        return [digest_sets.of_single(a, b, np.asarray(x.is_valid()))]

    def finish(self, state: Columns) -> pa.Array:
        return digest_sets.sizes(state[0]).cast(pa.int64())
