"""Looks at a Parquet file's footer: is it whole, and does it hold the declared columns in types that can be read as such?

Spark itself would give nulls for a column that is not there, wrong numbers for some unsigned ones, and an error for what
pandas writes. A column whose type holds more than the declared one is taken if its values fit: the footer's statistics
tell, or the values themselves. All that is wrong with a file is said at once.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t

from holdfast.flow.ddl import quoted
from holdfast.sources.fitness import ARROW, EITHER, SPARK, Facts, Unfit
from holdfast.sources.parquet_types import Way, ddl_for, integers_of, way
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.casting import first_unlike

_WHOLE = "Mend or remove it. Write files elsewhere and rename them into the directory when complete."
_MICROSECONDS = (
    "Write microseconds: pq.write_table(..., coerce_timestamps='us'), or astype('datetime64[us]') in pandas."
)
# Spark marks files whose old dates are in the calendar of their day, and converts them when it reads them.
_OLD_CALENDAR = b"org.apache.spark.legacy"


@dataclass(frozen=True)
class _Wrong:
    """What is wrong with a column, and what to declare instead: a name and a type, if there is anything."""

    reason: str
    instead: tuple[str, str] | None
    hint: str | None = None


def opened(path: Path) -> pa.NativeFile:
    """A file that Arrow reads by itself.

    Of a Python file Arrow's threads hold buffers for a moment after a read: if the interpreter ends just then, it aborts.
    """
    return pa.OSFile(str(path))


def parquet_facts(file: pa.NativeFile, declared: t.StructType, *, converts: bool = True) -> Facts:
    """The rows that the footer promises, and who can read them; Unfit if they cannot be read as declared.

    Without `converts`, nobody but Spark's own reader counts.
    """
    look = _Look(file, footer_of(file))
    judged = {field.name: look.judge(field) for field in declared.fields}
    by = look.reader([found for found in judged.values() if isinstance(found, Way)], declared)
    if by is None or (by == ARROW and not converts):
        judged = {field.name: look.spark_only(field, judged[field.name]) for field in declared.fields}
    wrong = {name: found for name, found in judged.items() if isinstance(found, _Wrong)}
    if wrong:
        raise Unfit("; ".join(one.reason for one in wrong.values()), _hint(declared, wrong))
    return Facts(int(look.footer.num_rows), look.columns(declared), by)


def footer_of(file: pa.NativeFile) -> pq.FileMetaData:
    """What a Parquet file says of itself; Unfit if it is not whole."""
    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's fault, not the file's
        raise Unfit(f"it is not a whole Parquet file: {error}", _WHOLE) from error


def signature(columns: pa.Schema) -> str:
    """Names and types, short."""
    text = repr([(field.name, str(field.type)) for field in columns])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _hint(declared: t.StructType, wrong: dict[str, _Wrong]) -> str:
    """The schema with which the file could be read."""
    own = [one.hint for one in wrong.values() if one.hint]
    fields = [
        wrong[field.name].instead if field.name in wrong else (field.name, field.dataType.simpleString())
        for field in declared.fields
    ]
    ddl = ", ".join(f"{quoted(name)} {kind}" for name, kind in filter(None, fields))
    changed = any(not one.hint for one in wrong.values())
    says = (
        [f'This file can be read with schema="{ddl}"; or write it with the declared columns.']
        if ddl and changed
        else []
    )
    return " ".join(dict.fromkeys([*own, *says])) or "Write the file with the declared columns."


class _Look:
    """A file that is being judged, column by column."""

    def __init__(self, file: pa.NativeFile, footer: pq.FileMetaData) -> None:
        self._file = file
        self.footer = footer
        try:
            self._found = footer.schema.to_arrow_schema()
        except pa.ArrowException as error:
            raise Unfit(f"it holds a column that cannot be read: {error}", _WHOLE) from error
        self._paths = [footer.schema.column(i).path for i in range(footer.num_columns)]
        self._int96 = {
            path.partition(".")[0]
            for i, path in enumerate(self._paths)
            if footer.schema.column(i).physical_type == "INT96"
        }
        self._old_calendar = any(key.startswith(_OLD_CALENDAR) for key in footer.metadata or {})

    def judge(self, field: t.StructField) -> Way | _Wrong:
        """How a declared column is read, or why it cannot be."""
        name = self._name(field.name)
        if name is None:
            return self._missing(field.name)
        kind = self._found.field(name).type
        if name in self._int96 and isinstance(field.dataType, t.TimestampType | t.TimestampNTZType):
            # Spark's old timestamps, which Arrow takes for nanoseconds.
            return Way.SPARK
        if str(kind) == str(_arrow(field)):
            return Way.EITHER
        found = way(field.dataType, kind)
        if found is None or (found is Way.VALUES and "." in name):  # a dot would lead into a struct
            return self._other_type(field, name, kind)
        if found is Way.VALUES:
            unlike = self._unlike(field, name, kind)
            return Way.ARROW if unlike is None else self._too_large(field, name, kind, unlike)
        return found

    def reader(self, ways: Sequence[Way], declared: t.StructType) -> str | None:
        """Who can read all columns; None if Spark would be needed for some, and Arrow for others."""
        by_spark = not any(one is Way.ARROW for one in ways)
        by_arrow = (
            not any(one is Way.SPARK for one in ways) and self._names_as(declared) and not self._old_calendar
        )
        if by_spark and by_arrow:
            return EITHER
        return SPARK if by_spark else ARROW if by_arrow else None

    def spark_only(self, field: t.StructField, judged: Way | _Wrong) -> Way | _Wrong:
        """The same for a file that only Spark can read: it does not convert."""
        name = self._name(field.name)
        if name is None or judged is not Way.ARROW:
            return judged
        kind = self._found.field(name).type
        return _Wrong(
            f"column {name!r} is {kind} in the file and declared as {field.dataType.simpleString()}, and cannot"
            " be converted here",
            _declare(name, kind),
        )

    def columns(self, declared: t.StructType) -> str | None:
        """The signature of the declared columns as the file has them; None if only Spark knows how to read them."""
        if not self._names_as(declared) or self._old_calendar:
            return None
        return signature(pa.schema([self._found.field(name) for name in declared.names]))

    def _names_as(self, declared: t.StructType) -> bool:
        """Whether the declared columns that the file has are spelled there as they are declared, and each is there once."""
        lower = [name.lower() for name in self._found.names]
        there = [name for name in declared.names if name.lower() in lower]
        return all(name in self._found.names and lower.count(name.lower()) == 1 for name in there)

    def _name(self, name: str) -> str | None:
        """The column as the file spells it; Spark does not mind upper and lower case."""
        if name in self._found.names:
            return name
        return next((other for other in self._found.names if other.lower() == name.lower()), None)

    def _missing(self, name: str) -> _Wrong:
        like = difflib.get_close_matches(name, self._found.names, n=1)
        instead = _declare(like[0], self._found.field(like[0]).type) if like else None
        return _Wrong(f"it has no column {name!r}: its columns are {', '.join(self._found.names)}", instead)

    def _other_type(self, field: t.StructField, name: str, kind: pa.DataType) -> _Wrong:
        declared = field.dataType.simpleString()
        return _Wrong(
            f"column {name!r} is {kind} in the file and declared as {declared}", _declare(name, kind)
        )

    def _too_large(self, field: t.StructField, name: str, kind: pa.DataType, value: object) -> _Wrong:
        declared = field.dataType.simpleString()
        reason = (
            f"column {name!r} is {kind} in the file and declared as {declared}, which does not hold {value}"
        )
        if pa.types.is_timestamp(kind) and not isinstance(field.dataType, t.DateType):
            return _Wrong(reason, None, _MICROSECONDS)
        return _Wrong(reason, _declare(name, kind))

    def _unlike(self, field: t.StructField, name: str, kind: pa.DataType) -> object | None:
        """A value that the declared type does not hold; None if there is none."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        bounds = integers_of(field.dataType)
        if pa.types.is_integer(kind) and bounds is not None:
            seen = self._smallest_and_largest(name)
            if seen is not None:
                return next((value for value in seen if not bounds[0] <= value <= bounds[1]), None)
        unlike = (first_unlike(column, _arrow(field)) for column in self._values(name))
        return next((value for value in unlike if value is not None), None)

    def _values(self, name: str) -> Iterator[pa.ChunkedArray]:
        """A column, a row group at a time."""
        self._file.seek(0)
        try:
            with pq.ParquetFile(self._file) as parquet:
                for number in range(parquet.num_row_groups):
                    yield parquet.read_row_group(number, [name], use_threads=False)[name]
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # the disk's fault, not the file's
            raise Unfit(f"column {name!r} cannot be read: {error}", _WHOLE) from error

    def _smallest_and_largest(self, name: str) -> tuple[int, ...] | None:
        """The bounds of a column of integers, as its statistics tell; None if they do not tell of all rows."""
        position = self._paths.index(name)
        seen: list[int] = []
        for number in range(self.footer.num_row_groups):
            chunk = self.footer.row_group(number).column(position)
            told = chunk.statistics
            if told is None or not (told.has_min_max or told.null_count == chunk.num_values):
                return None
            if told.has_min_max:
                seen += [int(told.min), int(told.max)]
        return (min(seen), max(seen)) if seen else ()


def _declare(name: str, kind: pa.DataType) -> tuple[str, str] | None:
    ddl = ddl_for(kind)
    return (name, ddl) if ddl else None


def _arrow(field: t.StructField) -> pa.DataType:
    return arrow_schema("files", t.StructType([field])).field(0).type
