"""What a source must do: discover what is new, in order, and read the same again when asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.ledger.inputs import Item

# In the body of an item that cannot be read and was set aside: why. Such an item has no rows, ever.
REFUSED = "refused"


class Source(Protocol):
    """A source that can be re-read."""

    def schema(self) -> t.StructType:
        """The columns of its rows."""

    def discover(self, known: set[str]) -> list[Item]:
        """Items that are not known yet, in the order in which they are to be read."""

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of items; an item that is gone or not what it was is an InputError."""

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """The most items and the most rows that an epoch may take, where the flow says so."""

    def more_to_come(self) -> bool:
        """Whether it is certain to have more, if one only waits."""


@runtime_checkable
class Mendable(Protocol):
    """A source whose items a person may mend as long as no committed epoch has read them."""

    def as_found(self, item: Item) -> Item:
        """The item as it is now: the same one, if nothing about it has changed."""


@runtime_checkable
class InFiles(Protocol):
    """A source of files, which tasks may be able to read themselves."""

    def direct(self, items: Sequence[Item]) -> bool:
        """Whether items are Parquet files with exactly the columns of the schema."""

    def checked(self, items: Sequence[Item]) -> list[Path]:
        """The files of items; one that is gone or not what it was is an InputError."""


@runtime_checkable
class Quarantining(Protocol):
    """A source that can set malformed rows aside."""

    def quarantined(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """What `read` leaves out of items: the columns of QUARANTINED."""
