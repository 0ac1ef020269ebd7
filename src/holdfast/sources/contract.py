"""What a source must do: discover what is new, in order, and read the same again when asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.ledger.inputs import Item

# In the body of an item that cannot be read and was set aside: why. Such an item has no rows, ever.
REFUSED = "refused"


@dataclass(frozen=True)
class Taken:
    """What the flow has taken from a source so far."""

    number: int = 0
    last: Item | None = None
    unread: int = 0  # items that some stage has yet to read
    known: Set[str] = frozenset()  # the identities of all of them


NOTHING = Taken()


@dataclass(frozen=True)
class Limits:
    """What one look at a source may bring."""

    items: int = limits.ITEMS_A_LOOK_MAX


class Source(ABC):
    """A source that gives the same rows again when asked. What has a body here may be left as it is."""

    @abstractmethod
    def schema(self) -> t.StructType:
        """The columns of its rows."""

    @abstractmethod
    def next(self, after: Taken, most: Limits) -> Sequence[Item]:
        """Items that were not taken yet, in the order in which they are to be read; none if there is nothing new.

        What is returned is written down before it is read, and is never asked for anew. It may be asked for by
        several processes at once; one of them writes it down.
        """

    @abstractmethod
    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of items, none for no items; an item that is gone or not what it was is an InputError."""

    def commit(self, last: Item) -> None:  # noqa: B027
        """No item up to this one will be read again: the source may let go of them."""

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """The most items and the most rows that an epoch may take, where the flow says so."""
        return None, None

    def more_to_come(self) -> bool:
        """Whether it is certain to have more, if one only waits."""
        return False


@runtime_checkable
class Mendable(Protocol):
    """A source whose items a person may mend as long as no committed epoch has read them."""

    def as_found(self, item: Item) -> Item:
        """The item as it is now: the same one, if nothing about it has changed."""


@runtime_checkable
class Driven(Protocol):
    """A source that works by itself as long as a process leads the stages that read it."""

    def start(self, spark: SparkSession, generation: int) -> None:
        """Begin; whoever did so under a lower generation is deposed."""

    def stop(self) -> None:
        """End, also if it was never begun."""


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


def check_still_empty(source: Source, items: Sequence[Item]) -> None:
    """Refuse items without rows, which nobody reads, if they have been written to since; one that is gone has none still."""
    if isinstance(source, Mendable) and isinstance(source, InFiles):
        source.checked([item for item in items if source.as_found(item) != item])
