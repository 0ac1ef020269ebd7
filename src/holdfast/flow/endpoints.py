"""Descriptions of where rows come from and where they go; the code that does it is in sources/ and sinks/."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.duration import idle_us, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.core.paths import local
from holdfast.flow.generate import GenerateSource
from holdfast.flow.kafka import KafkaSink, KafkaSource
from holdfast.flow.lake import DeltaSink, DeltaSource, IcebergSink
from holdfast.flow.own_edges import OwnSink, OwnSource
from holdfast.flow.streams import StreamSource

if TYPE_CHECKING:
    import pyarrow as pa


FORMATS = ("parquet", "json", "csv")
ON_ERROR = ("fail", "quarantine")


@dataclass(frozen=True)
class CsvOptions:
    """How the lines of CSV files are written: as RFC 4180 says, but for these."""

    header: bool = True
    separator: str = ","
    multiline: bool = False


@dataclass(frozen=True)
class FilesSource:
    """A directory whose files are read once each, in the order of their modification."""

    path: str
    schema: str | None  # None: as it was inferred when the flow first ran
    format: str = "parquet"
    on_error: str = "fail"
    max_files_per_epoch: int | None = None
    max_rows_per_epoch: int | None = None
    idle_after_us: int | None = None
    csv: CsvOptions = CsvOptions()
    rereadable: ClassVar[bool] = True

    @property
    def quarantines(self) -> bool:
        """Whether what cannot be read is set aside instead of stopping the flow."""
        return self.on_error == "quarantine"

    def reading(self) -> str:
        """What decides which rows a file gives; where rows that give none go does not."""
        return f"{self.format} {self.schema} {self.csv}"

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "on_error": self.on_error,
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
    quarantines: ClassVar[bool] = False
    rereadable: ClassVar[bool] = True

    def reading(self) -> str:
        """The rows are checked when they are read."""
        return ""

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
class TableSink:
    """A table of a database, upserted by key or appended to."""

    url: str = field(repr=False)  # it may hold a password
    table: str
    key: tuple[str, ...] | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it; not the address, which may hold a password."""
        return {
            "kind": "table",
            "table": self.table,
            "key": list(self.key) if self.key else None,
            "guarantee": "exactly_once",
            "because": "the rows of an epoch and the record of it are one transaction",
        }


@dataclass(frozen=True)
class ForeachSink:
    """A function that is called with the rows of each epoch."""

    function: Callable[[pa.Table, int, str], object]
    idempotent: bool = False
    read: Callable[[], pa.Table | Sequence[Mapping[str, object]]] | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "foreach",
            "function": getattr(self.function, "__name__", type(self.function).__name__),
            "guarantee": "exactly_once" if self.idempotent else "at_least_once",
            "because": "the flow says that the function may be called again with the same token"
            if self.idempotent
            else "the function is called again after a crash, with the same token",
        }


@dataclass(frozen=True)
class DiscardSink:
    """Lets rows go."""

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {"kind": "discard", "guarantee": None, "because": "nothing leaves the flow here"}


SourceDescription = (
    FilesSource | RowsSource | GenerateSource | OwnSource | KafkaSource | DeltaSource | StreamSource
)
SinkDescription = (
    ParquetSink | TableSink | ForeachSink | DiscardSink | OwnSink | KafkaSink | DeltaSink | IcebergSink
)


def check_sink(given: object) -> None:
    """Raise if something is given for a sink that is none."""
    if isinstance(given, SinkDescription):
        return
    if isinstance(given, SourceDescription):
        hint = "Rows come from there. Sinks are made by hf.parquet, hf.table and others: docs/SINKS.md."
    elif isinstance(given, str):
        meant = f'hf.table("{given}", "TABLE")' if "://" in given else f'hf.parquet("{given}")'
        hint = f"Say {meant}, or another sink of docs/SINKS.md."
    else:
        hint = 'Say hf.parquet("out/"), hf.table(url, "name"), hf.foreach(function) or another sink of docs/SINKS.md.'
    raise PlanError(f"{given!r} is not a sink", operation="describe", hint=hint)


def check_source(given: object) -> None:
    """Raise if something is given for a source that does not describe one."""
    if hasattr(given, "rereadable"):
        return
    hint = 'Say hf.files("in/", schema="...") or another source of docs/SOURCES.md.'
    if isinstance(given, str):
        hint = f'Say hf.files("{given}", schema="...") for files, or another source of docs/SOURCES.md.'
    raise PlanError(f"{given!r} is not a source", operation="describe", hint=hint)


def files(
    path: str,
    *,
    schema: str | None = None,
    format: str = "parquet",
    on_error: str = "fail",
    max_files_per_epoch: int | None = None,
    max_rows_per_epoch: int | None = None,
    idle_after: str | None = None,
    header: bool = True,
    separator: str = ",",
    multiline: bool = False,
) -> FilesSource:
    """Read the files of a directory, each once: Parquet, JSON (an object a line) or CSV.

    `schema` are the columns, as Spark DDL. Without it, the first run infers them from the Parquet files that are there,
    and writes them down in the work directory: every run from then on uses the same.

    Files must appear whole (write elsewhere, then rename); names that start with `.` or `_` are ignored. A
    file is never split between epochs.

    What cannot be read stops the flow, and nothing is lost; with `on_error="quarantine"` malformed rows, and
    files that cannot be read at all, are set aside and counted, and `.quarantine_to(sink)` keeps them.

    A source that had nothing new for `idle_after` no longer holds back the watermark of others beside it.
    `header`, `separator` and `multiline` (line breaks inside quotes) are for CSV.
    """
    for name, bound in (
        ("max_files_per_epoch", max_files_per_epoch),
        ("max_rows_per_epoch", max_rows_per_epoch),
    ):
        if bound is not None and bound < 1:
            raise PlanError(f"{name} must be at least 1, not {bound}", operation="files")
    for name, value, choices in (("format", format, FORMATS), ("on_error", on_error, ON_ERROR)):
        if value not in choices:
            raise PlanError(f"{name}={value!r} is not one of {', '.join(choices)}", operation="files")
    csv = CsvOptions(header, separator, multiline)
    if format != "csv" and csv != CsvOptions():
        raise PlanError(
            "header, separator and multiline are for CSV files",
            operation="files",
            hint=f'Leave them out, or give format="csv" instead of "{format}".',
        )
    if len(separator) != 1 or separator in '"\r\n' or not separator.isascii():
        raise PlanError(
            f"separator={separator!r} is not one character that can separate columns", operation="files"
        )
    bounds = max_files_per_epoch, max_rows_per_epoch, idle_us(idle_after)
    path = local(
        path,
        "what hf.files reads",
        f"Or let Spark read it: hf.read_stream(lambda spark: spark.readStream.schema(...).{format}({path!r}), schema=...).",
    )
    return FilesSource(path, schema, format, on_error, *bounds, csv)


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
    return RowsSource(table, per_epoch or max(table.num_rows, 1), idle_us(idle_after))


def _spelled(duration_us: int | None) -> str | None:
    return None if duration_us is None else spelled(duration_us)


def parquet(path: str, *, single_file: bool = False) -> ParquetSink:
    """Write each epoch as `epoch=NNNNNNNN/`, or with `single_file` as `epoch-NNNNNNNN.parquet`."""
    path = local(path, "what hf.parquet writes", "Or write a table: hf.delta, hf.iceberg, hf.table.")
    return ParquetSink(path, single_file)


def table(url: str, table: str, key: str | Sequence[str] | None = None) -> TableSink:
    """Write into a table of a database: with `key` upsert by these columns, without it append.

    `url` is SQLAlchemy's, such as `sqlite:///out.db` or `postgresql://user:password@host/database`, where the table
    may be `schema.table`. The table is made if it is not there. Null is a key like any other.
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


_URLS = "Write it as sqlite:///out.db, or as postgresql://user:password@host/database."


def _check_url(url: str) -> None:
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise PlanError("the url is not one that SQLAlchemy reads", operation="table", hint=_URLS) from error
    shown = parsed.render_as_string(hide_password=True)
    backend, database = parsed.get_backend_name(), parsed.database
    if backend not in ("sqlite", "postgresql"):
        raise PlanError(
            f"{shown} is neither a SQLite nor a PostgreSQL database", operation="table", hint=_URLS
        )
    if backend == "postgresql" and not database:
        raise PlanError(f"{shown} does not name a database", operation="table", hint=_URLS)
    if backend == "sqlite" and (
        database in (None, "", ":memory:") or str(database).startswith("file:") or parsed.query
    ):
        raise PlanError(
            f"{shown} does not name a file",
            operation="table",
            hint="Write it as sqlite:///relative.db or sqlite:////absolute/path.db, without options: a database in "
            "memory would be lost with the process.",
        )


def foreach(
    fn: Callable[[pa.Table, int, str], object],
    *,
    idempotent: bool = False,
    read: Callable[[], pa.Table | Sequence[Mapping[str, object]]] | None = None,
) -> ForeachSink:
    """Call `fn(rows, epoch, token)` with the rows of each epoch, in the process that runs the flow.

    It is called at least once an epoch. After a crash or an error it may be called again for an epoch, with the
    same token: `idempotent=True` declares that this has no second effect. Epochs without rows are passed over.
    `read` gives back all rows that calls of `fn` have left; `holdfast verify` compares them.
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
    if read is not None and not callable(read):
        raise PlanError(f"read must be a function, not {read!r}", operation="foreach")
    return ForeachSink(fn, idempotent, read)


def discard() -> DiscardSink:
    """Let the rows go: for flows of which only the state matters, and for measurements."""
    return DiscardSink()
