"""percentile(x, p): a sketch of the numbers of a key, and the values at its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import InputError, PlanError
from holdfast.core.json import Json
from holdfast.flow.aggregates import Aggregate
from holdfast.flow.percentiles import Percentile
from holdfast.spark.operators.accumulator import Accumulator, Columns
from holdfast.spark.operators.log_buckets import (
    BUCKET_BYTES,
    SKETCH_TYPE,
    Floats,
    Sketches,
    bits_for,
    buckets_of,
)
from holdfast.spark.operators.sorted_lists import sizes_of
from holdfast.state.canonical import Ints


@dataclass(frozen=True)
class Percentiles(Accumulator):
    """The state is a count per bucket; buckets are chosen here and not in SQL, so that both ways in agree bit by bit."""

    ranks: tuple[float, ...] = ()
    bits: int = 0
    most: int = limits.PERCENTILE_BUCKETS_MAX

    at_once: ClassVar[bool] = True

    @classmethod
    def partial_sql(cls, aggregate: Aggregate) -> list[str]:
        """The epoch's numbers: SQL has no aggregate that counts them by bucket."""
        return [f"collect_list({aggregate.expression})"]

    @classmethod
    def of(
        cls, name: str, aggregate: Aggregate, types: Sequence[pa.DataType], final: pa.DataType, ansi: bool
    ) -> Self:
        """Of numbers."""
        assert isinstance(aggregate, Percentile)
        kind = types[0].value_type
        if not _is_number(kind):
            raise PlanError(
                f"aggregate {name!r} = {aggregate.text()} is of type {kind}, not of a number",
                operation="bind",
                hint="Write the number: cast(x as double) of text, unix_micros(t) of a timestamp, unix_date(d) of a date.",
            )
        bits = bits_for(aggregate.error)
        return cls(name, ansi, tuple(types), final, aggregate.ranks, bits, aggregate.most)

    @property
    def options(self) -> Json:
        """What the state does not say."""
        return {"ranks": list(self.ranks), "bits": self.bits}

    @property
    def stored(self) -> tuple[pa.DataType, ...]:
        """Buckets and counts."""
        return (SKETCH_TYPE,)

    def merge(self, old: Columns, new: Columns) -> Columns:
        """Take in an epoch's numbers: as Spark collected them, or as `lift` and `reduce` made sketches of them."""
        sketches = Sketches.of(new[0]) if new[0].type == SKETCH_TYPE else self._collected(new[0])
        return self._bounded(Sketches.of(old[0]).plus(sketches))

    def reduce(self, group: Ints, stored: Columns) -> Columns:
        """All numbers of a group in one sketch."""
        parts = Sketches.of(stored[0])
        groups = int(group[-1]) + 1 if len(group) else 0
        return self._bounded(Sketches.counted(groups, group[parts.keys], parts.bucket, parts.count))

    def lifts(self, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def lift(self, x: pa.Array) -> Columns:
        bucket = buckets_of(_floats(x.drop_null()), self.bits)
        present = np.asarray(x.is_valid()).astype(np.int64)
        return [Sketches(present, bucket, np.ones(len(bucket), np.int64)).array()]

    def finish(self, state: Columns) -> pa.Array:
        found, missing = Sketches.of(state[0]).percentiles(self.ranks, self.bits)
        if not pa.types.is_list(self.final):
            return pa.array(found[:, 0], mask=missing)
        offsets = np.arange(len(found) + 1, dtype=np.int32) * len(self.ranks)
        values, mask = pa.array(found.reshape(-1)), pa.array(missing)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.final, mask=mask)

    def _collected(self, lists: pa.Array) -> Sketches:
        bucket = buckets_of(_floats(lists.flatten()), self.bits)
        key = np.repeat(np.arange(len(lists)), sizes_of(lists))
        return Sketches.counted(len(lists), key, bucket, np.ones(len(bucket), np.int64))

    def _bounded(self, sketches: Sketches) -> Columns:
        if len(sketches.sizes) and int(sketches.sizes.max()) > self.most:
            raise InputError(
                f"aggregate {self.name!r} needs more than {self.most:,} buckets for the numbers of one key",
                operation="aggregate",
                hint=f"Give it a larger max= (a bucket takes {BUCKET_BYTES} bytes, written again in every epoch that touches"
                " its key), or, under another name of the stage, a larger error=.",
            )
        return [sketches.array()]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floats(column: pa.Array) -> Floats:
    return np.asarray(column.cast(pa.float64(), safe=False))
