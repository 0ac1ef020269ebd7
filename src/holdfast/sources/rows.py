"""Rows in memory, for tests: a slice of the table is an item."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.core.errors import InputError, PlanError
from holdfast.flow.endpoints import RowsSource
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import Limits, Source, Taken
from holdfast.state.digest import digest


class Rows(Source):
    """The rows of an Arrow table, `per_epoch` at a time."""

    def __init__(self, name: str, description: RowsSource) -> None:
        self._name = name
        self._table = description.table
        self._per_epoch = description.per_epoch

    def schema(self) -> t.StructType:
        """The table's columns."""
        try:
            return from_arrow_schema(self._table.schema)
        except PySparkException as error:
            raise PlanError(
                f"source {self._name!r} has a column of a type that Spark does not have: {error.getMessage()}",
                operation="bind",
                hint=f"The columns are {', '.join(f'{field.name} {field.type}' for field in self._table.schema)}."
                " Cast it, an unsigned number to a signed one.",
            ) from error

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """The slices of the table that are not known yet."""
        starts = range(0, self._table.num_rows, self._per_epoch)
        new = [start for start in starts if self._identity(start) not in after.known]
        return [self._item(start) for start in new[: most.items]]

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of slices, if the table still holds what it held."""
        tables = [self._slice(item) for item in items]
        if not tables:
            return spark.createDataFrame([], self.schema())
        # Spark stops reading a table at the first batch without rows.
        batches = [batch for table in tables for batch in table.to_batches() if batch.num_rows]
        return spark.createDataFrame(pa.Table.from_batches(batches, tables[0].schema))

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """One slice an epoch."""
        return 1, None

    def _identity(self, start: int) -> str:
        return f"{start}+{self._per_epoch}"

    def _item(self, start: int) -> Item:
        part = self._table.slice(start, self._per_epoch)
        return Item(
            self._identity(start), part.num_rows, part.nbytes, {"start": start, "digest": digest(part)}
        )

    def _slice(self, item: Item) -> pa.Table:
        part = self._table.slice(item.body["start"], item.rows)
        if digest(part) != item.body["digest"]:
            raise InputError(
                f"source {self._name!r}: rows {item.identity} are not those that were there before",
                operation="read",
                hint="Give hf.rows the same rows in every run, or use a new work directory.",
            )
        return part
