"""Descriptions of where rows come from and where they go; the code that does it is in sources/ and sinks/."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from holdfast.flow.table_sink import TableSink

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
    path: str | os.PathLike[str],
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
    """Read the files of a directory, each once, in the order of their modification: Parquet, JSON or CSV.

    `schema` are the columns, as Spark DDL. Without it, the first run infers them from the Parquet files that are there,
    and writes them down in the work directory: every run from then on uses the same.

    Files must appear whole (write elsewhere, then rename); names that start with `.` or `_` are ignored. A
    file is never split between epochs.

    - `path`: the directory.
    - `schema`: the columns, as Spark SQL text, such as `"id string, amount decimal(10,2), ts timestamp"`.
    - `format`: `"parquet"`, the default, `"json"` (an object a line) or `"csv"`.
    - `on_error`: what cannot be read stops the flow and loses nothing with `"fail"`, the default. With `"quarantine"` malformed rows,
      and files that cannot be read at all, are set aside and counted, and `stream.quarantine_to` keeps them.
    - `max_files_per_epoch`, `max_rows_per_epoch`: the most that an epoch takes; by default what there is, within bounds of memory.
    - `idle_after`: a source that had nothing new for so long no longer holds back the watermark of others beside it; by
      default it always does.
    - `header`, `separator`, `multiline`: of CSV: whether the first line names the columns (True), what stands between them (`","`), and
      whether there are line breaks inside quotes (False).

    Raises `hf.PlanError` if a choice is none of these, a bound is below 1, a duration cannot be read, options are for another
    format, or `path` is no local directory.

    >>> files("in/", schema="id string, ts timestamp", format="csv", max_files_per_epoch=10).format
    'csv'
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
    """Use rows in memory as a source, for tests.

    - `data`: a list of dicts, or an Arrow table.
    - `per_epoch`: how many rows an epoch takes; all of them by default.
    - `idle_after`: as for `hf.files`; None by default.

    Raises `hf.PlanError` if there is no column, or a duration cannot be read.
    """
    import pyarrow as pa

    table = data if isinstance(data, pa.Table) else pa.Table.from_pylist(list(data))
    if table.num_columns == 0:
        raise PlanError("hf.rows needs at least one column", operation="rows")
    return RowsSource(table, per_epoch or max(table.num_rows, 1), idle_us(idle_after))


def _spelled(duration_us: int | None) -> str | None:
    return None if duration_us is None else spelled(duration_us)


def parquet(path: str | os.PathLike[str], *, single_file: bool = False) -> ParquetSink:
    """Write each epoch as a directory of Parquet files, `epoch=NNNNNNNN/`, which appears in one rename.

    - `path`: the directory that they appear in.
    - `single_file`: write each epoch as one file instead, `epoch-NNNNNNNN.parquet`; False by default.

    Raises `hf.PlanError` if `path` is no local directory, such as an address of an object store.
    """
    path = local(path, "what hf.parquet writes", "Or write a table: hf.delta, hf.iceberg, hf.table.")
    return ParquetSink(path, single_file)


def foreach(
    fn: Callable[[pa.Table, int, str], object],
    *,
    idempotent: bool = False,
    read: Callable[[], pa.Table | Sequence[Mapping[str, object]]] | None = None,
) -> ForeachSink:
    """Call a function with the rows of each epoch, in the process that runs the flow.

    It is called at least once an epoch. After a crash or an error it may be called again for an epoch, with the
    same token. Epochs without rows are passed over.

    - `fn`: `fn(rows, epoch, token)`, with an Arrow table, a number and a text.
    - `idempotent`: True declares that a second call with the same token has no second effect; False by default, and then
      the flow's guarantee must be `at_least_once`.
    - `read`: gives back all rows that calls of `fn` have left, for `holdfast verify` to compare; None by default.

    Raises `hf.PlanError` if `fn` or `read` is no function, or `fn` cannot be called so.

    >>> def send(rows, epoch, token): ...
    >>> foreach(send, idempotent=True).idempotent
    True
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
