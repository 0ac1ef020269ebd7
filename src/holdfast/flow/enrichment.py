"""Tables that streams are enriched with: where their rows come from, and how often they are looked at.

A table is read as a whole, again and again; a source is read once. What an epoch is enriched with is a version of the table,
which its plan records (`runtime/tables.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from holdfast.core.duration import microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.endpoints import FilesSource, SourceDescription
from holdfast.flow.names import check_name

HOWS = ("left", "inner")

# How old the last look at a table may be when an epoch is planned, unless the flow says otherwise.
REFRESH = "1 minute"


@dataclass(frozen=True)
class TableSpec:
    """A table under its name."""

    description: FilesSource
    refresh_us: int | None  # None: it is looked at once, by each process that runs the stage

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        description = self.description
        refresh = "once, when the stage starts" if self.refresh_us is None else spelled(self.refresh_us)
        facts = {"kind": "files", "path": description.path, "format": description.format}
        return {**facts, "schema": description.schema, "refresh": refresh}


@dataclass(frozen=True)
class Enrich:
    """Adds the columns of a table's row that has the same key."""

    table: str
    on: tuple[tuple[str, str], ...]  # the stream's column, the table's
    how: str
    prefix: str
    origin: str  # where the rows of the table come from: another place is another table

    def __str__(self) -> str:
        keys = ", ".join(mine if mine == theirs else f"{mine} = {theirs}" for mine, theirs in self.on)
        prefixed = f", columns as {self.prefix}..." if self.prefix else ""
        return f"enrich with {self.table} ({self.origin}) on {keys}, {self.how}{prefixed}"


def enrich(
    known: dict[str, TableSpec],
    table: object,
    on: object,
    how: str,
    prefix: str,
    refresh: str | None,
    name: str | None,
) -> Enrich:
    """The step, with its table among those that the flow knows by name."""
    description = _description(table)
    if how not in HOWS:
        raise _refused(
            f"enrich cannot join how={how!r}",
            'Say how="left", which keeps rows without a partner, or how="inner", which drops them.',
        )
    if not isinstance(prefix, str):
        raise _refused(f"prefix={prefix!r} is not text", 'Write prefix="country_".')
    refresh_us = None if refresh is None else microseconds(refresh, "refresh", zero=True)
    called = _named(name, description)
    spec = known.setdefault(called, TableSpec(description, refresh_us))
    if spec != TableSpec(description, refresh_us):
        raise _refused(
            f"there are two tables named {called!r}, of other files, with another schema or another refresh",
            "Give one of them a name of its own: enrich(..., name='...').",
        )
    origin = f"{description.format} files of {description.path}"
    return Enrich(called, _keys(on), how, prefix, origin)


def _description(table: object) -> FilesSource:
    if isinstance(table, FilesSource):
        return _checked(table)
    hint = 'Say enrich(hf.files("countries/", schema="code string, name string"), on="code").'
    if isinstance(table, str):
        hint = f'Say enrich(hf.files("{table}", schema="..."), on=...): a directory, and the columns of its files.'
    elif isinstance(table, SourceDescription):
        hint = f"A table is a directory of files. {hint}"
    elif hasattr(table, "flow") and hasattr(table, "node"):
        hint = "That is a stream: two streams are joined by .join(right, on=..., time=..., within=...)."
    elif type(table).__module__.startswith("pyspark.sql"):
        hint = f"A flow is described where no Spark runs, and a DataFrame has no version that a replay could ask for. {hint}"
    raise _refused(f"enrich takes a table, not {_short(table)}", hint)


def _checked(table: FilesSource) -> FilesSource:
    """A table has declared columns, no epochs, and sets nothing aside."""
    if table.schema is None:
        raise _refused(
            f"the table in {table.path!r} has no schema=",
            "Declare its columns: its files may change, and the stream must not change with them.",
        )
    given = {
        "on_error": table.quarantines,
        "max_files_per_epoch": table.max_files_per_epoch is not None,
        "max_rows_per_epoch": table.max_rows_per_epoch is not None,
        "idle_after": table.idle_after_us is not None,
    }
    wrong = [option for option, is_set in given.items() if is_set]
    if wrong:
        raise _refused(
            f"{', '.join(wrong)} of hf.files means nothing for a table, which is read as a whole",
            "Leave it out: what cannot be read stops the flow, and nothing is lost.",
        )
    return table


def _keys(on: object) -> tuple[tuple[str, str], ...]:
    match on:
        case str():
            pairs = [(on, on)]
        case Mapping():
            pairs = list(on.items())
        case Sequence():
            pairs = [(key, key) for key in on]
        case _:
            pairs = []
    texts = all(isinstance(side, str) and side for pair in pairs for side in pair)
    if not pairs or not texts or any(len(set(side)) != len(pairs) for side in zip(*pairs, strict=True)):
        raise _refused(
            f"on={on!r} does not name key columns, each once",
            'Write on="country", on=["country", "city"], or on={"country": "code"} where the table calls it otherwise.',
        )
    return tuple(pairs)


def _named(name: str | None, description: FilesSource) -> str:
    """The name that the flow gives, or the last part of the path in letters that may stand in one."""
    if name is not None:
        return check_name(name, "table")
    last = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePath(description.path).name).strip("-")
    if not last:
        raise _refused(
            f"{description.path!r} has no name to call the table by", "Give it one: enrich(..., name='...')."
        )
    return check_name(last[:100], "table")


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refused(message: str, hint: str) -> PlanError:
    return PlanError(message, operation="describe", hint=hint)
