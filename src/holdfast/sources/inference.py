"""The schema of a directory of files, told from the files that are there, without Spark.

Of Parquet it is certain: every file has it in its footer. Of text it would be a guess, which the next file can prove wrong: it
is only proposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, InputError, PlanError
from holdfast.flow.ddl import quoted
from holdfast.flow.endpoints import FilesSource
from holdfast.ledger.source_schemas import SourceSchema
from holdfast.sources.fitness import Unfit
from holdfast.sources.listing import listed
from holdfast.sources.parquet_files import footer_of, opened
from holdfast.sources.parquet_types import ddl_for

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# An index that pandas writes beside the columns, under a name that nobody gave.
_INDEX = re.compile(r"__index_level_\d+__")
_SAMPLE_BYTES = 1 << 20


def infer(name: str, description: FilesSource) -> SourceSchema:
    """What to read the files of a source as; an error that says what to write where that cannot be told."""
    directory = Path(description.path).resolve()
    files = [directory / file for _, file, _ in listed(f"source {name!r}", directory)]
    if not files:
        raise InputError(
            f"source {name!r} has no schema=, and {directory} holds no file to infer it from",
            operation="infer",
            hint='Put the first file there, or write the columns: hf.files(..., schema="id string, qty int, ts timestamp").',
        )
    if description.format != "parquet":
        raise _proposal(name, description, files)
    return _Merged(name, description.quarantines).of(files[: limits.INFERRED_FILES_MAX])


@dataclass
class _Merged:
    """The columns of several files as one: each in a type that holds what all files have there."""

    source: str
    quarantines: bool
    types: dict[str, str | None] = field(default_factory=dict)  # None: nothing but nulls so far
    seen: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # by column, a file and the type that it has there
    wrong: list[str] = field(default_factory=list)

    def of(self, files: list[Path]) -> SourceSchema:
        """The schema; a PlanError with all that stands in the way."""
        number = 0
        for file in files:
            columns = self._columns(file)
            if columns is not None:
                self._add(file.name, columns, first=number == 0)
                number += 1
        nulls = [name for name, kind in self.types.items() if kind is None]
        self.wrong += [f"column {name!r} holds nothing but nulls in every file" for name in nulls]
        ddl = ", ".join(f"{quoted(name)} {kind or 'string'}" for name, kind in self.types.items())
        if self.wrong or not ddl:
            raise PlanError(
                f"the schema of source {self.source!r} cannot be inferred: "
                + ("; ".join(dict.fromkeys(self.wrong)) or "no file can be read"),
                operation="infer",
                hint=f'Write what you mean, such as schema="{ddl}".'
                if ddl
                else "Write schema=... on the source.",
            )
        return SourceSchema(ddl, number)

    def _columns(self, file: Path) -> dict[str, pa.DataType] | None:
        try:
            with opened(file) as parquet:
                found = footer_of(parquet).schema.to_arrow_schema()
        except FileNotFoundError:
            return None
        except (Unfit, pa.ArrowException) as error:
            if self.quarantines:
                return None
            raise InputError(
                f"source {self.source!r} cannot read {file}: {error}",
                operation="infer",
                hint=error.hint if isinstance(error, Unfit) else "Mend or remove it.",
            ) from error
        return {part.name: part.type for part in found if not _INDEX.fullmatch(part.name)}

    def _add(self, file: str, columns: Mapping[str, pa.DataType], first: bool) -> None:
        for name in [name for name in self.types if name not in columns]:
            self.wrong.append(f"{file} has no column {name!r}, which {self.seen[name][0]} has")
        for name, kind in columns.items():
            if not first and name not in self.types:
                self.wrong.append(f"{file} has a column {name!r}, which the files before it do not have")
            self._merge(file, name, kind)

    def _merge(self, file: str, name: str, kind: pa.DataType) -> None:
        if pa.types.is_null(kind):
            self.types.setdefault(name, None)
            self.seen.setdefault(name, (file, str(kind)))
            return
        ddl, before = ddl_for(kind), self.types.get(name)
        if ddl is None:
            self.wrong.append(f"column {name!r} is {kind} in {file}, which Spark has no type for")
            return
        both = ddl if before is None else _wider(before, ddl)
        if both is None:
            other, other_kind = self.seen[name]
            self.wrong.append(f"column {name!r} is {other_kind} in {other} and {kind} in {file}")
            return
        if before is None:
            self.seen[name] = file, str(kind)
        self.types[name] = both


def _wider(one: str, other: str) -> str | None:
    """The type that holds both; None if none does."""
    if one == other:
        return one
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    if {one, other} == {"float", "double"}:
        return "double"
    decimals = [re.fullmatch(r"decimal\((\d+),(\d+)\)", kind) for kind in (one, other)]
    if all(decimals):
        pairs = [(int(found[1]), int(found[2])) for found in decimals if found]
        scale = max(part for _, part in pairs)
        digits = max(whole - part for whole, part in pairs) + scale
        return f"decimal({digits},{scale})" if digits <= 38 else None
    return None


def _proposal(name: str, description: FilesSource, files: list[Path]) -> HoldfastError:
    """What to write for text, as far as the beginning of a file tells."""
    found = _guessed(description, files[0])
    columns = [f"{quoted(part.name)} {ddl_for(part.type) or 'string'}" for part in found or ()]
    example = ", ".join(columns) or "id string, qty int, ts timestamp"
    looks = f"{files[0].name} looks like" if columns else "Write it as"
    return PlanError(
        f"source {name!r} has no schema=, and {description.format.upper()} files do not say which types they hold",
        operation="infer",
        hint=f'{looks} schema="{example}".' + (" Check it, and write it down." if columns else ""),
    )


def _guessed(description: FilesSource, file: Path) -> pa.Schema | None:
    try:
        with file.open("rb") as text:
            head = text.read(_SAMPLE_BYTES)
        whole = head[: head.rfind(b"\n") + 1] or head
        if description.format == "json":
            return pyarrow.json.read_json(pa.BufferReader(whole)).schema
        names = pyarrow.csv.ReadOptions(autogenerate_column_names=not description.csv.header)
        separator = pyarrow.csv.ParseOptions(delimiter=description.csv.separator)
        return pyarrow.csv.read_csv(pa.BufferReader(whole), names, separator).schema
    except (OSError, pa.ArrowException):
        return None
