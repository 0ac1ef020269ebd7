"""Values of rows, and texts of any origin, as JSON, XML, a page and a terminal can carry them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pyarrow as pa

from holdfast.core.json import Json

# What XML 1.0 forbids, and the control characters that would command a terminal. Line ends and tabs stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    r"""A text with the characters written out that a file or a terminal could not take.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(1_000, "row")
    ('1 row', '1,000 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def plain_rows(rows: pa.Table) -> list[Json]:
    """A few rows as JSON. The values that JSON has no form for become their text."""
    names = rows.column_names
    return [
        {name: _plain(column[number]) for name, column in zip(names, rows.columns, strict=True)}
        for number in range(rows.num_rows)
    ]


def _plain(value: pa.Scalar) -> object:
    try:
        return _jsonable(value.as_py())
    except (ValueError, OverflowError):
        # A time that Python has no type for.
        return str(value.cast(pa.string()).as_py())


def _jsonable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return str(value)
