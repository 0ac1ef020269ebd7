"""Rows of two sides in one table: columns of one type share a place.

Every value that crosses from the JVM into Python costs, a null as much as any other, so the columns of one side are
not sent as nulls for the rows of the other: c0, c1, ... hold the keys of both, then pairs of columns of equal type,
then what has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import quoted, unfit_for_comparison


@dataclass(frozen=True)
class Packing:
    """Which place each column of a side has."""

    stored: pa.Schema  # c0, c1, ...
    types: tuple[t.DataType, ...]  # of the places, as Spark knows them
    sides: tuple[dict[str, int], dict[str, int]]  # by side, the place of each column

    @classmethod
    def of(
        cls, stage: str, schemas: Sequence[t.StructType], keys: Sequence[str], times: Sequence[str]
    ) -> Packing:
        """Give every column a place: the keys first, then the times, so that these meet."""
        types: list[t.DataType] = []
        sides: list[dict[str, int]] = []
        for schema, time in zip(schemas, times, strict=True):
            places: dict[str, int] = {}
            for name in dict.fromkeys([*keys, time, *schema.names]):
                places[name] = _place(types, schema[name].dataType, set(places.values()))
            sides.append(places)
        fields = [t.StructField(f"c{i}", kind, True) for i, kind in enumerate(types)]
        return cls(arrow_schema(stage, t.StructType(fields)), tuple(types), (sides[0], sides[1]))

    @property
    def comparable(self) -> list[str]:
        """Places whose values can be put in order."""
        return [f"c{i}" for i, kind in enumerate(self.types) if not unfit_for_comparison(kind)]

    def columns(self, side: int) -> list[Column]:
        """All places for the rows of a side: its columns, and nulls where only the other side has one."""
        names = {place: name for name, place in self.sides[side].items()}
        return [
            (f.col(quoted(names[i])) if i in names else f.lit(None)).cast(kind).alias(f"c{i}")
            for i, kind in enumerate(self.types)
        ]

    @property
    def left_places(self) -> list[str]:
        """Where the columns of the left stand: first, so that they stay where they are whatever the right has."""
        return [f"c{number}" for number in range(len(self.sides[0]))]

    def place(self, side: int, name: str) -> str:
        """Where a column of a side stands."""
        return f"c{self.sides[side][name]}"


def _place(types: list[t.DataType], kind: t.DataType, taken: set[int]) -> int:
    """The first place of this type that the side has not taken; a new one if there is none."""
    for number, other in enumerate(types):
        if number not in taken and other.simpleString() == kind.simpleString():
            return number
    types.append(kind)
    return len(types) - 1
