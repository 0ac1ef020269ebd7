"""Descriptions of where rows come from and where they go; the code that does it is in sources/ and sinks/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.duration import microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FilesSource:
    """A directory whose files are read once each, in the order of their modification."""

    path: str
    schema: str
    max_files_per_epoch: int | None = None
    max_rows_per_epoch: int | None = None
    idle_after_us: int | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "files",
            "path": self.path,
            "schema": self.schema,
            "max_files_per_epoch": self.max_files_per_epoch,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "idle_after": _spelled(self.idle_after_us),
        }


@dataclass(frozen=True, eq=False)
class RowsSource:
    """Rows held in memory, for tests: `per_epoch` of them at a time."""

    table: pa.Table
    per_epoch: int
    idle_after_us: int | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "rows",
            "schema": ", ".join(f"{field.name} {field.type}" for field in self.table.schema),
            "rows": self.table.num_rows,
            "rows_per_epoch": self.per_epoch,
            "idle_after": _spelled(self.idle_after_us),
        }


@dataclass(frozen=True)
class ParquetSink:
    """A directory of Parquet files, one directory (or file) an epoch, renamed into place."""

    path: str
    single_file: bool = False

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        each = "a file" if self.single_file else "a directory"
        return {
            "kind": "parquet",
            "path": self.path,
            "guarantee": "exactly_once",
            "because": f"each epoch is {each} that appears in one rename, with the record of it",
        }


@dataclass(frozen=True)
class DiscardSink:
    """Lets rows go."""

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {"kind": "discard", "guarantee": None, "because": "nothing leaves the flow here"}


SourceDescription = FilesSource | RowsSource
SinkDescription = ParquetSink | DiscardSink


def files(
    path: str,
    *,
    schema: str,
    max_files_per_epoch: int | None = None,
    max_rows_per_epoch: int | None = None,
    idle_after: str | None = None,
) -> FilesSource:
    """Read the Parquet files of a directory, each once. A file is never split between epochs.

    Files must appear whole (write elsewhere, then rename); names that start with `.` or `_` are ignored.
    A source that had nothing new for `idle_after` no longer holds back the watermark of others beside it.
    """
    for name, bound in (
        ("max_files_per_epoch", max_files_per_epoch),
        ("max_rows_per_epoch", max_rows_per_epoch),
    ):
        if bound is not None and bound < 1:
            raise PlanError(f"{name} must be at least 1, not {bound}", operation="files")
    return FilesSource(path, schema, max_files_per_epoch, max_rows_per_epoch, _idle(idle_after))


def rows(
    data: Sequence[Mapping[str, object]] | pa.Table,
    *,
    per_epoch: int | None = None,
    idle_after: str | None = None,
) -> RowsSource:
    """Use rows in memory as a source: a list of dicts, or an Arrow table."""
    import pyarrow as pa

    table = data if isinstance(data, pa.Table) else pa.Table.from_pylist(list(data))
    if table.num_columns == 0:
        raise PlanError("hf.rows needs at least one column", operation="rows")
    return RowsSource(table, per_epoch or max(table.num_rows, 1), _idle(idle_after))


def _idle(idle_after: str | None) -> int | None:
    return None if idle_after is None else microseconds(idle_after, "idle_after", zero=True)


def _spelled(duration_us: int | None) -> str | None:
    return None if duration_us is None else spelled(duration_us)


def parquet(path: str, *, single_file: bool = False) -> ParquetSink:
    """Write each epoch as `epoch=NNNNNNNN/`, or with `single_file` as `epoch-NNNNNNNN.parquet`."""
    return ParquetSink(path, single_file)


def discard() -> DiscardSink:
    """Let the rows go: for flows of which only the state matters, and for measurements."""
    return DiscardSink()
