"""A table in the files of a directory: all of them, as they are now.

Files are looked at by name, length and times; they are read only when one of these has changed. What is read is read again
if they change meanwhile, so rows of two versions never come together. A file that is written in place can be seen half
written, as by any reader: it is written elsewhere and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, InputError
from holdfast.flow.endpoints import FilesSource
from holdfast.sources.contract import NOTHING, Limits
from holdfast.sources.files import TABLE, Files
from holdfast.storage.checksums import Identity, identity

T = TypeVar("T")

# By the name of a file, what changes when somebody writes to it.
Listing = dict[str, Identity]


class TableFiles:
    """The files of one table."""

    def __init__(self, name: str, description: FilesSource) -> None:
        self._name = name
        self._directory = Path(description.path).resolve()
        self._files = Files(name, description, kind=TABLE)

    def schema(self) -> t.StructType:
        """The declared columns."""
        return self._files.schema()

    def look(self) -> Listing:
        """The files as they are now; an InputError if there is no such directory, or more than a table may have."""
        try:
            with os.scandir(self._directory) as entries:
                names = [e.name for e in entries if e.name[0] not in "._" and e.is_file()]
        except OSError:
            self._files.next(NOTHING, Limits(1))  # raises what it says of such a directory
            raise
        found = {name: stamp for name in names if (stamp := _stamp(self._directory / name))}
        self._check(found)
        return found

    def read(self, spark: SparkSession, take: Callable[[DataFrame], T]) -> tuple[T, Listing]:
        """What `take` makes of all rows, and the files that they are from."""
        for _ in range(limits.TABLE_READS_MAX):
            before = self.look()
            try:
                items = self._files.next(NOTHING, Limits(limits.TABLE_FILES_MAX))
                taken = take(self._files.read(spark, items))
            except HoldfastError:
                if self.look() == before:
                    raise
                continue
            if self.look() == before:
                return taken, before
        raise InputError(
            f"the files of table {self._name!r} in {self._directory} change while they are read",
            operation="enrich",
            hint="Write files elsewhere and rename them into the directory when complete. Run again: the epoch was not"
            " planned, and nothing is lost.",
        )

    def _check(self, found: Listing) -> None:
        size = sum(length for _, length, _, _ in found.values())
        bounds = (
            (len(found), limits.TABLE_FILES_MAX, "files"),
            (size, limits.TABLE_BYTES_MAX, "bytes of files"),
        )
        for number, most, what in bounds:
            if number > most:
                raise too_large(self._name, number, most, what)


def _stamp(path: Path) -> Identity | None:
    """None for a file that has gone since it was listed."""
    try:
        return identity(path)
    except FileNotFoundError:
        return None


def too_large(table: str, number: int, most: int, what: str) -> InputError:
    """A copy of every version is kept, and every task gets all of it: so a table is small."""
    return InputError(
        f"table {table!r} has {number:,} {what}, and one that streams are enriched with has at most {most:,}",
        operation="enrich",
        hint="Leave out columns in schema=, or rows that no stream has the key of. A larger table can be read as a stream"
        " and joined with .join(...).",
    )
