"""Descriptions of where rows come from and where they go; the code that does it is in sources/ and sinks/."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.duration import microseconds
from holdfast.core.errors import PlanError

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


@dataclass(frozen=True, eq=False)
class RowsSource:
    """Rows held in memory, for tests: `per_epoch` of them at a time."""

    table: pa.Table
    per_epoch: int
    idle_after_us: int | None = None


@dataclass(frozen=True)
class ParquetSink:
    """A directory of Parquet files, one directory (or file) an epoch, renamed into place."""

    path: str
    single_file: bool = False


@dataclass(frozen=True)
class TableSink:
    """A table of a database, upserted by key or appended to."""

    url: str = field(repr=False)  # it may hold a password
    table: str
    key: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ForeachSink:
    """A function that is called with the rows of each epoch."""

    function: Callable[[pa.Table, int, str], object]
    idempotent: bool = False


@dataclass(frozen=True)
class DiscardSink:
    """Lets rows go."""


SourceDescription = FilesSource | RowsSource
SinkDescription = ParquetSink | TableSink | ForeachSink | DiscardSink


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


def parquet(path: str, *, single_file: bool = False) -> ParquetSink:
    """Write each epoch as `epoch=NNNNNNNN/`, or with `single_file` as `epoch-NNNNNNNN.parquet`."""
    return ParquetSink(path, single_file)


def table(url: str, table: str, key: str | Sequence[str] | None = None) -> TableSink:
    """Write into a table of a database: with `key` upsert by these columns, without it append.

    `url` is SQLAlchemy's, such as `sqlite:///out.db`. The table is made if it is not there. Null is a key like
    any other.
    """
    _check_url(url)
    if not table or "\0" in table or table.lower() == "holdfast_sinks":
        raise PlanError(f"{table!r} cannot name a table", operation="table")
    keys = (key,) if isinstance(key, str) else None if key is None else tuple(key)
    if keys is not None and (not keys or len({name.lower() for name in keys}) != len(keys)):
        raise PlanError(
            f"key={list(keys)} is not a list of different columns",
            operation="table",
            hint="Name the columns by which rows replace each other, or leave key out to append.",
        )
    return TableSink(url, table, keys)


def _check_url(url: str) -> None:
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise PlanError(
            "the url is not one that SQLAlchemy reads",
            operation="table",
            hint="Write it as sqlite:///out.db.",
        ) from error
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() != "sqlite":
        raise PlanError(
            f"{shown} is not a SQLite database", operation="table", hint="Write it as sqlite:///out.db."
        )
    if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:") or parsed.query:
        raise PlanError(
            f"{shown} does not name a file",
            operation="table",
            hint="Write it as sqlite:///relative.db or sqlite:////absolute/path.db, without options: a database in "
            "memory would be lost with the process.",
        )


def foreach(fn: Callable[[pa.Table, int, str], object], *, idempotent: bool = False) -> ForeachSink:
    """Call `fn(rows, epoch, token)` with the rows of each epoch, in the process that runs the flow.

    It is called at least once an epoch. After a crash or an error it may be called again for an epoch, with the
    same token: `idempotent=True` declares that this has no second effect. Epochs without rows are passed over.
    """
    if not callable(fn):
        raise PlanError(f"foreach needs a function, not {fn!r}", operation="foreach")
    try:
        inspect.signature(fn).bind(None, 0, "")
    except TypeError as error:
        raise PlanError(
            f"{getattr(fn, '__name__', fn)!r} cannot be called with rows, epoch and token: {error}",
            operation="foreach",
            hint="Write it as def send(rows, epoch, token).",
        ) from error
    except ValueError:
        pass  # a function of C's that does not tell its parameters
    return ForeachSink(fn, idempotent)


def discard() -> DiscardSink:
    """Let the rows go: for flows of which only the state matters, and for measurements."""
    return DiscardSink()
