"""A directory of Parquet files, each read once, in the order of their modification.

A file is an item; its name is its identity; its length and modification time are recorded when it is
discovered, and it is never read if they have changed since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core.errors import InputError
from holdfast.flow.endpoints import FilesSource
from holdfast.ledger.inputs import Item
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.schemas import parse_schema

# Spark marks files whose old dates are in the calendar of their day, and converts them when it reads them.
_OLD_CALENDAR = b"org.apache.spark.legacy"


class Files:
    """The files of one directory."""

    def __init__(self, name: str, description: FilesSource) -> None:
        self._name = name
        self._description = description
        self._directory = Path(description.path).resolve()
        self._schema = parse_schema(f"source {name!r}", description.schema)
        self._arrow = arrow_schema(name, self._schema)

    def schema(self) -> t.StructType:
        """The declared columns."""
        return self._schema

    def discover(self, known: set[str]) -> list[Item]:
        """New files, oldest first; files of one instant by name."""
        try:
            with os.scandir(self._directory) as entries:
                new = [e for e in entries if e.name not in known and e.name[0] not in "._" and e.is_file()]
                found = sorted((e.stat().st_mtime_ns, e.name, e.stat().st_size) for e in new)
        except OSError as error:
            raise InputError(
                f"source {self._name!r} cannot list {self._directory}: {error.strerror}",
                operation="discover",
                hint="Make the directory, or mend its permissions.",
            ) from error
        return [self._item(name, size, mtime_ns) for mtime_ns, name, size in found]

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """Read files as they were when they were discovered."""
        paths = [unglobbed(path) for path in self.paths(items)]
        if not paths:
            return spark.createDataFrame([], self._schema)
        return spark.read.schema(self._schema).parquet(*paths)

    def direct(self, items: Sequence[Item]) -> bool:
        """As far as their footers said when they were discovered."""
        declared = _signature(self._arrow)
        return all(item.body.get("columns") == declared for item in items)

    def paths(self, items: Sequence[Item]) -> list[str]:
        """Files as they were when they were discovered."""
        return [self._checked(item) for item in items]

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """As the flow says."""
        return self._description.max_files_per_epoch, self._description.max_rows_per_epoch

    def _item(self, name: str, size: int, mtime_ns: int) -> Item:
        try:
            footer = pq.read_metadata(self._directory / name)
            body = {"bytes": size, "mtime_ns": mtime_ns, "columns": self._found(footer)}
            return Item(name, int(footer.num_rows), size, body)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"source {self._name!r}: {name} is not a whole Parquet file: {error}",
                operation="discover",
                hint="Mend or remove it. Write files elsewhere and rename them into the directory when complete.",
            ) from error

    def _found(self, footer: pq.FileMetaData) -> str | None:
        """The signature of the declared columns as a file has them; None if only Spark knows how to read them."""
        schema = footer.schema.to_arrow_schema()
        twice = any(schema.names.count(name) != 1 for name in self._arrow.names)
        if twice or any(key.startswith(_OLD_CALENDAR) for key in footer.metadata or {}):
            return None
        return _signature(pa.schema([schema.field(name) for name in self._arrow.names]))

    def _checked(self, item: Item) -> str:
        path = self._directory / item.identity
        try:
            stat = path.stat()
            now = (stat.st_size, stat.st_mtime_ns)
        except OSError:
            now = None
        if now != (item.body["bytes"], item.body["mtime_ns"]):
            what = "is gone" if now is None else "has changed since it was discovered"
            raise InputError(
                f"source {self._name!r}: {path} {what}, and it is needed",
                operation="read",
                hint="Put the file back as it was, with its modification time.",
            )
        return str(path)


def _signature(columns: pa.Schema) -> str:
    """Names and types, short."""
    text = repr([(field.name, str(field.type)) for field in columns])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def unglobbed(path: str) -> str:
    """Spark globs paths: characters with a meaning there are escaped."""
    return "".join(f"\\{c}" if c in "[]{}*?\\" else c for c in path)
