"""What a table sink needs of a database: everything that one does differently from another, as far as one table goes.

`table.py` decides who may write, what is published and in which order; a database says how. The rows of an epoch are
first brought as near to the table as is possible without touching it (`staged`), then moved in one transaction with the
sink's record. A database whose rows can go straight into the table stages nothing and moves them all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import adbc_driver_manager
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import HoldfastError, SinkError


@dataclass(frozen=True)
class Column:
    """A column of a table that is there: its declared type, and whether a row must have a value for it."""

    declared: str
    needed: bool


@dataclass(frozen=True)
class Epoch:
    """The rows of one epoch on their way: segments that all hold some, the table's columns, and by which it is upserted."""

    segments: Sequence[Path]
    schema: pa.Schema
    table: sa.Table
    key: tuple[str, ...] | None


class Staged(ABC):
    """The rows of an epoch, as near to the table as they can be before the transaction."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """The one transaction in which they are moved: it ends with all of it, or with nothing."""

    @abstractmethod
    def move(self, tx: Connection) -> None:
        """Bring them into the table."""


class Database(ABC):
    """A database, as one table sink sees it."""

    # What can go wrong below this interface, and is explained by it.
    failures: ClassVar[tuple[type[Exception], ...]]

    @property
    @abstractmethod
    def target(self) -> str:
        """The table, as the record calls it."""

    @property
    @abstractmethod
    def place(self) -> object:
        """The table among all tables of all databases."""

    @property
    @abstractmethod
    def dialect(self) -> sa.Dialect:
        """How SQLAlchemy writes for this database."""

    @abstractmethod
    def __str__(self) -> str:
        """Where it is, without a password."""

    # Columns

    @abstractmethod
    def fold(self, name: str) -> str:
        """A name as the database compares it."""

    @abstractmethod
    def named(self, columns: Sequence[str]) -> sa.quoted_name:
        """The table's own name; a PlanError if the database cannot have it or one of the columns."""

    @abstractmethod
    def declared(self, kind: pa.DataType) -> sa.types.TypeEngine[Any] | None:
        """The type to declare for a column of an Arrow type; None if it cannot be stored."""

    @abstractmethod
    def columns(self, tx: Connection) -> Mapping[str, Column]:
        """The columns of the table by folded name; none if there is no table."""

    @abstractmethod
    def keeps(self, declared: str, kind: pa.DataType) -> bool:
        """Whether a column of the declared type gives back what is stored in it."""

    @abstractmethod
    def make_key(self, tx: Connection, table: sa.Table, key: Sequence[str]) -> None:
        """Have a unique index over the key."""

    # Transactions

    @abstractmethod
    def prepare(self, claim: str) -> None:
        """Get ready for an opening of the table, which has this claim."""

    @abstractmethod
    def opening(self) -> AbstractContextManager[Connection]:
        """A transaction beside which nobody else opens a table of the database."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """A consistent view."""

    @abstractmethod
    def end_sessions(self, tx: Connection, claim: str) -> None:
        """End what an opening that is about to be replaced has under way, where that is possible."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    # Rows

    @abstractmethod
    def staged(self, epoch: Epoch) -> AbstractContextManager[Staged]:
        """The rows of an epoch, for as long as they are needed; segments that are ours and torn are a StorageError."""

    @abstractmethod
    def clear_staging(self) -> None:
        """Remove what openings of the table left behind."""

    @abstractmethod
    def explained(self, error: Exception, operation: str, epoch: int | None) -> SinkError:
        """What went wrong, whether it heals by itself, and what to do."""


def ingest(
    cursor: Any, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: object
) -> None:
    """Feed batches to a driver of ADBC. An error of ours on the way passes through it only as text, and is raised as it was."""
    failures: list[HoldfastError] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except HoldfastError as error:
            failures.append(error)
            raise

    try:
        cursor.adbc_ingest(table, pa.RecordBatchReader.from_batches(schema, watched()), **options)
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        if failures:
            raise failures[0] from error
        raise
