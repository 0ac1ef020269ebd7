"""Which value of SQLite stands for which value of a column, and which declared types keep it as it is.

SQLite has five kinds of value (null, integer, real, text, blob), and the *affinity* of a column, which follows
from its declared type, may turn one into another: text that looks like a number becomes a number in a NUMERIC
column, a whole number becomes a float in a REAL one. A column is accepted only where nothing of that can happen.

What SQLite has no value for: NaN, which it would turn into null, is stored as the text `NaN`; -0.0 becomes 0.0.
Exact decimals, dates and timestamps are text, as SQLAlchemy's own types for SQLite write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

NAN = "NaN"


@dataclass(frozen=True)
class Stored:
    """How a column is stored: the type to declare, the affinities that leave it alone, and its Arrow form."""

    declared: sa.types.TypeEngine[Any]
    kept_by: frozenset[str]
    convert: Callable[[pa.Array], pa.Array]
    may_be_nan: bool = False


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _as_text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _as_utc_text(values: pa.Array) -> pa.Array:
    """`2026-01-31 12:00:00.000000`: text of one width, so that it sorts as the times do."""
    return values.cast(pa.timestamp("us")).cast(pa.string())


_WHOLE = frozenset({"INTEGER", "NUMERIC", "BLOB"})
_REAL = frozenset({"REAL", "BLOB"})
_TEXT = frozenset({"TEXT", "BLOB"})
# Text that no affinity takes for a number.
_DATED = frozenset({"TEXT", "NUMERIC", "BLOB"})
_BYTES = frozenset({"BLOB"})


def stored(kind: pa.DataType) -> Stored | None:
    """How a column of this type is stored; None if it cannot be."""
    is_ = pa.types
    if is_.is_boolean(kind):
        return Stored(sa.Boolean(), _WHOLE, _as_it_is)
    if is_.is_integer(kind) and kind != pa.uint64():
        return Stored(_whole(kind.bit_width), _WHOLE, _as_it_is)
    if is_.is_float32(kind) or is_.is_float64(kind):
        return Stored(sa.Double(), _REAL, _as_it_is, may_be_nan=True)
    if is_.is_decimal(kind):
        return Stored(sa.Text(), _TEXT, _as_text)
    if is_.is_string(kind) or is_.is_large_string(kind):
        return Stored(sa.Text(), _TEXT, _as_it_is)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return Stored(sa.LargeBinary(), _BYTES, _as_it_is)
    if is_.is_date32(kind):
        return Stored(sa.Date(), _DATED, _as_text)
    if is_.is_timestamp(kind) and kind.unit == "us":
        return Stored(sa.DateTime(), _DATED, _as_utc_text)
    return None


def affinity(declared: str) -> str:
    """What SQLite makes of a declared type (section 3.1 of its "Datatypes" page)."""
    name = declared.upper()
    for affinity_name, parts in (
        ("INTEGER", ("INT",)),
        ("TEXT", ("CHAR", "CLOB", "TEXT")),
        ("BLOB", ("BLOB",)),
        ("REAL", ("REAL", "FLOA", "DOUB")),
    ):
        if any(part in name for part in parts):
            return affinity_name
    return "NUMERIC" if name else "BLOB"


def _whole(bits: int) -> sa.types.TypeEngine[Any]:
    if bits <= 16:
        return sa.SmallInteger()
    return sa.Integer() if bits <= 32 else sa.BigInteger()
