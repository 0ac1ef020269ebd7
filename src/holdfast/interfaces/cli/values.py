"""Values of Arrow columns as JSON and as text. A few rows at a time: whoever prints them has a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.json import Json


def as_json(table: pa.Table) -> list[Json]:
    """Rows as objects: times in ISO 8601, decimals and numbers that JSON lacks as text, bytes in hex."""
    columns = {name: _values(table[name]) for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def as_text(table: pa.Table) -> list[list[str]]:
    """Rows as cells; null is NULL, as in Spark's own tables."""
    return [[_cell(value) for value in row.values()] for row in as_json(table)]


def _values(column: pa.ChunkedArray) -> list[object]:
    if pa.types.is_timestamp(column.type):
        # Arrow's own text: a time that Python's calendar does not reach is still one.
        text = pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())
        ending = "Z" if column.type.tz else ""
        return [None if value is None else f"{value.replace(' ', 'T')}{ending}" for value in text.to_pylist()]
    return [plain(value) for value in column.to_pylist()]


def plain(value: object) -> object:
    """A value as JSON has it.

    >>> plain({"a": [Decimal("1.50"), float("nan"), b"\\x01"]})
    {'a': ['1.50', 'NaN', '01']}
    """
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return (
                value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
            )
        case bytes():
            return value.hex()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case Decimal():
            return str(value)
        case _:
            return str(value)


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)
