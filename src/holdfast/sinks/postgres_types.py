"""Which type of PostgreSQL holds a column, and in which Arrow form its values are sent there.

Rows travel in PostgreSQL's binary form, in which nothing is converted: the driver writes an Arrow type's own form, and
the column must be of the type that has it. So values are first cast, whole arrays at a time, to the form of the column
that is there. A column is accepted only if it gives back what is put into it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

Convert = Callable[[pa.Array], pa.Array]

_WIDTHS = {"smallint": 16, "integer": 32, "bigint": 64}
_DIGITS = {16: 5, 32: 10, 64: 19}
_DIGITS_UNSIGNED = 20  # of the largest uint64
_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_TEXT = re.compile(r"text|json|character varying(?:\(\d+\))?")
_MOMENT = re.compile(r"timestamp(?:\(6\))? (with|without) time zone")
_JSONB_VERSION = "\x01"  # what stands before the text in the binary form of jsonb


def declared(kind: pa.DataType) -> sa.types.TypeEngine[Any] | None:
    """The type to declare for a column of an Arrow type; None if there is none."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return declared(kind.value_type)
    if kind == pa.uint64():
        return sa.Numeric(_DIGITS_UNSIGNED, 0)
    if is_.is_integer(kind):
        return {16: sa.SmallInteger(), 32: sa.Integer(), 64: sa.BigInteger()}[_width(kind)]
    if is_.is_decimal(kind):
        return sa.Numeric(kind.precision, kind.scale)
    if is_.is_timestamp(kind):
        return pg.TIMESTAMP(timezone=kind.tz is not None) if kind.unit == "us" else None
    for of_kind, type_ in _PLAIN:
        if of_kind(kind):
            return type_
    return None


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], sa.types.TypeEngine[Any]], ...] = (
    (pa.types.is_boolean, sa.Boolean()),
    (pa.types.is_float32, sa.REAL()),
    (pa.types.is_float64, pg.DOUBLE_PRECISION()),
    (pa.types.is_string, sa.Text()),
    (pa.types.is_large_string, sa.Text()),
    (pa.types.is_binary, sa.LargeBinary()),
    (pa.types.is_large_binary, sa.LargeBinary()),
    (pa.types.is_date32, sa.Date()),
)


def conversion(column: str, kind: pa.DataType) -> Convert | None:
    """How values get into a column of a type, as `format_type` spells it; None if they would not stay as they are."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        inner = conversion(column, kind.value_type)
        return None if inner is None else lambda values: inner(values.dictionary_decode())
    if is_.is_integer(kind):
        return _of_integers(column, kind)
    if is_.is_decimal(kind):
        return _as_it_is if _holds(column, kind.precision, kind.scale) else None
    if is_.is_string(kind) or is_.is_large_string(kind):
        return _as_jsonb if column == "jsonb" else _as_it_is if _TEXT.fullmatch(column) else None
    if is_.is_timestamp(kind):
        zoned = _MOMENT.fullmatch(column)
        return _as_it_is if zoned and (zoned[1] == "with") == (kind.tz is not None) else None
    if is_.is_float32(kind) and column == "double precision":
        return _cast_to(pa.float64())
    plain = declared(kind)
    return _as_it_is if plain is not None and column == _SPELLED.get(type(plain)) else None


_SPELLED: dict[type, str] = {
    sa.Boolean: "boolean",
    sa.REAL: "real",
    pg.DOUBLE_PRECISION: "double precision",
    sa.LargeBinary: "bytea",
    sa.Date: "date",
}


def is_collated(column: str) -> bool:
    """Whether values of a column sort by the rules of a language."""
    return column == "text" or column.startswith("character varying")


def _of_integers(column: str, kind: pa.DataType) -> Convert | None:
    if column in _WIDTHS:
        wide_enough = kind != pa.uint64() and _WIDTHS[column] >= _width(kind)
        return _cast_to(getattr(pa, f"int{_WIDTHS[column]}")()) if wide_enough else None
    digits = _DIGITS_UNSIGNED if kind == pa.uint64() else _DIGITS[_width(kind)]
    return _cast_to(pa.decimal128(digits, 0)) if _holds(column, digits, 0) else None


def _width(kind: pa.DataType) -> int:
    """The bits of the smallest integer with a sign that holds all values."""
    bits = kind.bit_width * 2 if pa.types.is_unsigned_integer(kind) else kind.bit_width
    return max(bits, 16)


def _holds(column: str, precision: int, scale: int) -> bool:
    found = _NUMERIC.fullmatch(column)
    if not found:
        return False
    if found[1] is None:
        return True
    return int(found[2]) >= scale and int(found[1]) - int(found[2]) >= precision - scale


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _cast_to(kind: pa.DataType) -> Convert:
    return lambda values: values.cast(kind)


def _as_jsonb(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_JSONB_VERSION, values.cast(pa.string()), "")
