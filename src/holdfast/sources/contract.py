"""What a source must do: discover what is new, in order, and read the same again when asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.ledger.inputs import Item


class Source(Protocol):
    """A source that can be re-read."""

    def schema(self) -> t.StructType:
        """The columns of its rows."""

    def discover(self, known: set[str]) -> list[Item]:
        """Items that are not known yet, in the order in which they are to be read."""

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of items; an item that is gone or not what it was is an InputError."""

    def direct(self, items: Sequence[Item]) -> bool:
        """Whether items are Parquet files with exactly the columns of the schema, for tasks to read themselves."""

    def paths(self, items: Sequence[Item]) -> list[str]:
        """The files of items that are `direct`; one that is gone or not what it was is an InputError."""

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """The most items and the most rows that an epoch may take, where the flow says so."""
