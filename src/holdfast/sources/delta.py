"""A Delta table, read as a stream: the files that it holds at first, then those that each version adds.

A file is an item; the version that brought it and its place among the files of that version say what comes next. So
what was taken last is all that a process needs to go on. Rows come from the files themselves, which are there until a
vacuum removes them. Versions that only move rows between files (compaction) bring nothing.

Invariants: items come in the order of versions, and of the log inside a version; a version that takes rows away is
never read as if it only added some; what cannot be read as it is meant (deletion vectors, mapped columns) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pf
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import HoldfastError, InputError
from holdfast.core.extras import package_of
from holdfast.core.json import Json
from holdfast.core.secrets import without_secrets
from holdfast.flow.lake import DeltaSource
from holdfast.ledger.inputs import Item
from holdfast.sources import delta_table
from holdfast.sources.contract import Limits, Source, Taken
from holdfast.sources.delta_table import Added, Shape
from holdfast.sources.files import unglobbed
from holdfast.sources.fitness import Unfit
from holdfast.sources.parquet_files import parquet_facts, signature
from holdfast.spark.arrow_types import arrow_schema
from holdfast.storage import delta_log

if TYPE_CHECKING:
    from deltalake import DeltaTable

_VACUUMED = (
    "A vacuum removes files that the newest version no longer names: restore the file, or start the flow anew with a new "
    "work directory. Keep deleted files for longer than the flow may stand still (delta.deletedFileRetentionDuration)."
)


class Delta(Source):
    """The files of one table."""

    def __init__(self, name: str, description: DeltaSource) -> None:
        with package_of("delta"):
            import deltalake  # noqa: F401
        self._name = name
        self._description = description
        self._address = delta_log.address(description.path)
        # Versions after an item that were found to bring nothing need not be read again by this process.
        self._passed: tuple[str, int] = ("", -1)

    def schema(self) -> t.StructType:
        """The table's columns when the flow was bound."""
        return self._shape.schema

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """Files that were added since the last one that was taken."""
        with self._explained("discover"):
            found = self._first() if after.last is None else self._following(after.last)
            return [self._item(added) for added in islice(found, most.items)]

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of files, with the columns that only the log knows."""
        groups: list[dict[str, Item]] = []  # by the names of files, which are all different as a rule
        for item in self._checked(items):
            name = PurePosixPath(item.body["path"]).name
            group = next((group for group in groups if name not in group), None)
            if group is None:
                groups.append(group := {})
            group[name] = item
        frames = [self._frame(spark, group) for group in groups]
        return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], self.schema())

    def direct(self, items: Sequence[Item]) -> bool:
        """As far as the footers said when the files were discovered."""
        if not isinstance(self._files, pf.SubTreeFileSystem) or self._shape.partition_by:
            return False
        declared = signature(arrow_schema(self._name, self.schema()))
        return all(item.body.get("columns") == declared for item in items if "path" in item.body)

    def checked(self, items: Sequence[Item]) -> list[Path]:
        """The files of items, as they were when they were discovered."""
        return [Path(self._address, item.body["path"]) for item in self._checked(items)]

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """As the flow says."""
        return self._description.max_files_per_epoch, self._description.max_rows_per_epoch

    # Finding what is new

    def _first(self) -> Iterator[Added]:
        start = self._description.start
        if isinstance(start, int):
            yield from self._versions("", start)
            return
        table = self._table()
        if start == "latest":
            # An item without rows: what "latest" was must be known to whoever comes after a crash.
            yield Added(table.version(), 0, 1, None)
        else:
            yield from self._snapshot(table)

    def _following(self, last: Item) -> Iterator[Added]:
        version, index, of = (int(last.body[name]) for name in ("version", "index", "of"))
        if index + 1 < of:
            same = self._snapshot(self._table(version)) if last.body["snapshot"] else self._version(version)
            yield from islice(same or (), index + 1, None)
        yield from self._versions(last.identity, version + 1)

    def _snapshot(self, table: DeltaTable) -> Iterator[Added]:
        """All files of a version, oldest first."""
        self._shape.refuse_others(delta_table.shape_of(table), table.version())
        adds = delta_table.files_of(table, self._shape.partition_by)
        for index, add in enumerate(adds):
            yield Added(table.version(), index, len(adds), add, snapshot=True)

    def _versions(self, last: str, version: int) -> Iterator[Added]:
        """What versions from one on have added, as far as there are any."""
        if self._passed[0] == last:
            version = max(version, self._passed[1])
        while (added := self._version(version)) is not None:
            yield from added
            version += 1
            if not added:
                self._passed = (last, version)
            last = last if not added else self._identity(added[-1])
        self._refuse_gap(version)

    def _version(self, version: int) -> list[Added] | None:
        """What one version has added; None if there is no such version yet."""
        try:
            with self._files.open_input_stream(delta_log.commit_name(version)) as file:
                commit = delta_log.parsed(file.read())
        except FileNotFoundError:
            return None
        self._shape.refuse_others(delta_table.shape_in(commit), version)
        if commit.changes:
            if self._description.on_change == "skip":
                return []
            raise self._error(
                f"version {version} deletes or changes rows that were there before",
                'Say on_change="skip" to pass over such versions with all that they added, or start anew with a new work '
                "directory to read the table as it is now.",
            )
        adds = commit.added
        return [Added(version, index, len(adds), add) for index, add in enumerate(adds)]

    def _refuse_gap(self, version: int) -> None:
        """No file of a version means that there is no such version yet, unless logs were cleaned up."""
        before = delta_log.commit_name(max(version - 1, 0))
        if (
            self._files.get_file_info(before).type != pf.FileType.NotFound
            or self._table().version() < version
        ):
            return
        raise self._error(
            f"version {version} is gone from the log, and the flow has not read it",
            "Start the flow anew with a new work directory to read the table as it is now. Keep logs for longer than the flow "
            "may stand still (delta.logRetentionDuration).",
        )

    # Items

    def _identity(self, added: Added) -> str:
        return f"{added.version}:{'start' if added.add is None else delta_log.file_path(added.add)}"

    def _item(self, added: Added) -> Item:
        body: Json = {
            "version": added.version, "index": added.index, "of": added.of, "snapshot": added.snapshot,
        }  # fmt: skip
        if added.add is None:
            return Item(self._identity(added), 0, 0, body)
        path, size = delta_log.file_path(added.add), int(added.add["size"])
        if "://" in path or path.startswith("/") or added.add.get("deletionVector"):
            what = (
                "a deletion vector" if added.add.get("deletionVector") else "files outside of its directory"
            )
            raise self._error(
                f"version {added.version} has {what}, which cannot be read",
                "Rewrite the table without them: REORG TABLE ... APPLY (PURGE), or a deep clone.",
            )
        body |= {"path": path, "bytes": size, "partition": dict(added.add.get("partitionValues") or {})}
        rows, columns = self._facts(path, added.add)
        return Item(self._identity(added), rows, size, body | ({"columns": columns} if columns else {}))

    def _facts(self, path: str, add: Json) -> tuple[int | None, str | None]:
        """Rows and columns of a file: by its footer where that is near, else by what the log says of it."""
        if not isinstance(self._files, pf.SubTreeFileSystem):
            return delta_table.rows_said(add), None
        try:
            with self._files.open_input_file(path) as file:
                names = {name.lower() for name in pq.read_metadata(file).schema.to_arrow_schema().names}
                there = [column for column in self._shape.stored if column.name.lower() in names]
                facts = parquet_facts(file, t.StructType(there), converts=False)
        except FileNotFoundError as error:
            raise self._error(f"{path} is gone, and it is needed", _VACUUMED) from error
        except (Unfit, pa.ArrowException) as error:
            reason = error.reason if isinstance(error, Unfit) else error
            raise self._error(f"{path} cannot be read: {reason}", "Restore the file.") from error
        # A file from before a column was added: only Spark gives nulls for it.
        return facts.rows, facts.columns if len(there) == len(self._shape.stored) else None

    # Reading

    def _frame(self, spark: SparkSession, named: Mapping[str, Item]) -> DataFrame:
        """The rows of files in one scan, with what the log says of each."""
        rows = spark.read.schema(self._shape.stored).parquet(*map(self._file, named.values()))
        if not self._shape.partition_by:
            return rows
        file = rows.metadataColumn("_metadata")["file_name"]
        numbers = f.create_map(*(f.lit(part) for pair in zip(named, count()) for part in pair))[file]
        number = f.when(
            numbers.isNull(), f.raise_error(f.concat(f.lit("a file that nobody asked for: "), file))
        )
        return rows.select(
            *(
                f.get(f.array(*_values(column.name, named.values())), number.otherwise(numbers))
                .cast(column.dataType)
                .alias(column.name)
                if column.name in self._shape.partition_by
                else rows["`" + column.name.replace("`", "``") + "`"]
                for column in self.schema()
            )
        )

    def _checked(self, items: Sequence[Item]) -> list[Item]:
        """Items with rows, whose files are what they were."""
        found = [item for item in items if "path" in item.body]
        with self._explained("read"):
            for item in found:
                info = self._files.get_file_info(item.body["path"])
                if info.type != pf.FileType.File or info.size != item.body["bytes"]:
                    what = "is gone" if info.type == pf.FileType.NotFound else "is not what it was"
                    raise self._error(f"{item.body['path']} {what}, and it is needed", _VACUUMED, "read")
        return found

    def _file(self, item: Item) -> str:
        path = f"{self._address}/{item.body['path']}"
        return unglobbed(path) if "://" not in self._address else path

    # The table

    @cached_property
    def _shape(self) -> Shape:
        with self._explained("bind"):
            return delta_table.shape_of(self._table())

    @cached_property
    def _files(self) -> pf.FileSystem:
        """The table's directory."""
        if "://" not in self._address:
            return pf.SubTreeFileSystem(self._address, pf.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pf.PyFileSystem(DeltaStorageHandler(self._address, dict(self._description.options)))

    def _table(self, version: int | None = None) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(
                self._address, version=version, storage_options=dict(self._description.options) or None
            )
        except TableNotFoundError as error:
            raise self._error(
                f"there is no Delta table at {self._address}",
                "Make the table first: the flow takes its columns from it.",
                "bind",
            ) from error

    @contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        """An error of deltalake, or of the log, in our words."""
        try:
            yield
        except delta_table.Unreadable as error:
            raise self._error(str(error), error.hint, operation) from error
        except HoldfastError:
            raise
        except Exception as error:
            reason = without_secrets(f"{type(error).__name__}: {error}", self._description.options)
            raise self._error(f"the table cannot be read: {reason}", None, operation) from error

    def _error(self, what: str, hint: str | None, operation: str = "discover") -> InputError:
        return InputError(f"source {self._name!r}: {what}", operation=operation, hint=hint)


def _values(name: str, items: Iterable[Item]) -> list[Column]:
    """What the log says of a column, by file; an empty value is null, says the protocol."""
    return [f.lit(item.body["partition"].get(name) or None).cast("string") for item in items]
