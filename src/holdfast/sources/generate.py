"""Generated events: an item is a range of row numbers, and its rows follow from the recipe and their numbers.

A rate decides when an item may be discovered, by the clock since the flow first began, which the first item
records; it never decides what the rows are. So an epoch can be read again, on any machine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core.errors import InputError
from holdfast.core.json import Json
from holdfast.flow.generate import GenerateSource
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import Limits, Source, Taken
from holdfast.sources.generated_rows import BLOCK_ROWS, Blocks, Columns
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.cores import exchange_tasks
from holdfast.spark.schemas import parse_schema


class Generate(Source):
    """The rows of one recipe, `per_epoch` at a time."""

    def __init__(self, name: str, description: GenerateSource, first: Item | None = None) -> None:
        self._name = name
        self._description = description
        self._schema = parse_schema(f"source {name!r}", description.schema)
        self._columns = Columns(name, description.recipe, arrow_schema(name, self._schema))
        self._began_ms = first.body["began_ms"] if first else time.time_ns() // 1_000_000
        self._found = 0
        self._settings = _settings(description)
        if first and first.body["settings"] != self._settings:
            raise InputError(
                f"source {name!r} was generated with other settings before",
                operation="discover",
                hint="Give hf.generate the same settings in every run (rate= may change), or use a new work directory.",
            )

    def schema(self) -> t.StructType:
        """The declared columns."""
        return self._schema

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """The next items that are due; an item's identity is its number."""
        stop = min(self._items_due(), after.number + most.items)
        found = [self._item(number) for number in range(after.number, stop)]
        self._found = after.number + len(found)
        return found

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of items, made inside the tasks."""
        if not items:
            return spark.createDataFrame([], self._schema)
        start = min(item.body["start"] for item in items)
        stop = max(item.body["start"] + item.body["rows"] for item in items)
        first, end = start // BLOCK_ROWS, (stop - 1) // BLOCK_ROWS + 1
        blocks = spark.range(first, end, 1, min(end - first, exchange_tasks(spark)))
        return blocks.mapInArrow(Blocks(self._columns, start, stop), self._schema)

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """One item an epoch."""
        return 1, None

    def more_to_come(self) -> bool:
        """Until the last row is due."""
        return self._found < self._items()

    def _items(self) -> int:
        return -(-self._description.rows // self._description.per_epoch)

    def _items_due(self) -> int:
        rate = self._description.rate
        if rate is None:
            return self._items()
        elapsed_ms = time.time_ns() // 1_000_000 - self._began_ms
        rows = max(0, int(elapsed_ms * rate / 1000))
        return self._items() if rows >= self._description.rows else rows // self._description.per_epoch

    def _item(self, number: int) -> Item:
        description = self._description
        start = number * description.per_epoch
        rows = min(description.per_epoch, description.rows - start)
        body: Json = {"start": start, "rows": rows}
        if number == 0:
            body |= {"began_ms": self._began_ms, "settings": self._settings}
        return Item(str(number), rows, rows * self._columns.row_bytes, body)


def _settings(description: GenerateSource) -> str:
    """All that an item depends on, in short."""
    told = f"{description.reading()} {description.rows} {description.per_epoch}"
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
