"""Which of the types in a Parquet file can be read as which declared ones, and how.

Invariant: no way changes a value. What Spark's own reader gives as declared goes that way; where only Arrow can, it does, and
a type that holds more than the declared one is taken if the values of the file fit.
"""

from __future__ import annotations

from enum import Enum

import pyarrow as pa
from pyspark.sql import types as t


class Way(Enum):
    """How a column of a file becomes the declared one."""

    EITHER = "either"  # Spark's reader gives it, and so does Arrow
    SPARK = "spark"  # only Spark's reader knows how
    ARROW = "arrow"  # Arrow gives it; Spark's reader would refuse
    VALUES = "values"  # Arrow gives it if the values fit


_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())

# By declared type, the integers that Spark reads into it without changing a value.
_INTEGERS: dict[type[t.DataType], tuple[pa.DataType, ...]] = {
    t.ByteType: _SIGNED[:1],
    t.ShortType: (*_SIGNED[:2], pa.uint8()),
    t.IntegerType: (*_SIGNED[:3], pa.uint8(), pa.uint16()),
    t.LongType: (*_SIGNED, pa.uint8(), pa.uint16(), pa.uint32()),
    t.DoubleType: (*_SIGNED[:3], pa.uint8(), pa.uint16()),
}

# The integers that a declared type holds, all of them.
_RANGES: dict[type[t.DataType], tuple[int, int]] = {
    t.ByteType: (-(2**7), 2**7 - 1),
    t.ShortType: (-(2**15), 2**15 - 1),
    t.IntegerType: (-(2**31), 2**31 - 1),
    t.LongType: (-(2**63), 2**63 - 1),
    t.FloatType: (-(2**24), 2**24),
    t.DoubleType: (-(2**53), 2**53),
}

_SAME_NAME = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    # Spark SQL has no unsigned types: the next wider one holds all their values.
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
}


def way(declared: t.DataType, found: pa.DataType) -> Way | None:
    """How a file's type is read as the declared one; None if it is not."""
    if pa.types.is_dictionary(found):
        return way(declared, found.value_type)
    if pa.types.is_null(found):
        return Way.ARROW
    if pa.types.is_integer(found) and type(declared) in _RANGES:
        return Way.EITHER if found in _INTEGERS.get(type(declared), ()) else Way.VALUES
    match declared:
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return Way.VALUES if _is_float(found) else None
        case t.StringType():
            return _either(_is_text(found))
        case t.BinaryType():
            return _either(_is_bytes(found))
        case t.BooleanType():
            return _either(pa.types.is_boolean(found))
        case t.FloatType():
            return _either(pa.types.is_float32(found))
        case t.DoubleType():
            return _either(_is_float(found))
        case t.DateType():
            return Way.VALUES if _is_naive(found) else _either(pa.types.is_date(found))
        case t.TimestampType():
            return _timestamp(found)
        case t.TimestampNTZType():
            return _timestamp(found) if _is_naive(found) else None
        case t.DecimalType():
            return _decimal(declared, found)
        case t.ArrayType() | t.StructType() | t.MapType():
            return Way.SPARK if _fits_nested(declared, found) else None
        case _:
            return Way.SPARK  # Spark's own reader has the word on its rarer types


def integers_of(declared: t.DataType) -> tuple[int, int] | None:
    """The smallest and the largest integer between which a declared type holds all; None if it has none."""
    if isinstance(declared, t.DecimalType):
        most = 10 ** (declared.precision - declared.scale) - 1
        return -most, most
    return _RANGES.get(type(declared))


def ddl_for(found: pa.DataType) -> str | None:
    """What to declare for a file's type, so that every value of it is held; None if Spark has nothing for it."""
    if found in _SAME_NAME:
        return _SAME_NAME[found]
    if pa.types.is_dictionary(found):
        return ddl_for(found.value_type)
    if _is_text(found) or _is_bytes(found):
        return "string" if _is_text(found) else "binary"
    if pa.types.is_timestamp(found):
        return "timestamp"
    return _ddl_of_nested(found)


def _ddl_of_nested(found: pa.DataType) -> str | None:
    if pa.types.is_decimal(found):
        return (
            f"decimal({found.precision},{found.scale})"
            if found.precision <= 38 and found.scale >= 0
            else None
        )
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        inner = ddl_for(found.value_type)
        return inner and f"array<{inner}>"
    if pa.types.is_map(found):
        key, value = ddl_for(found.key_type), ddl_for(found.item_type)
        return f"map<{key},{value}>" if key and value else None
    if pa.types.is_struct(found):
        parts = [(part.name, ddl_for(part.type)) for part in found]
        return (
            f"struct<{','.join(f'`{name}`:{kind}' for name, kind in parts)}>"
            if all(k for _, k in parts)
            else None
        )
    return None


def _either(fits: bool) -> Way | None:
    return Way.EITHER if fits else None


def _is_text(found: pa.DataType) -> bool:
    # A view is how its writer held it in memory: in the file it is a string like any other.
    return pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)


def _is_bytes(found: pa.DataType) -> bool:
    return (
        pa.types.is_binary(found)
        or pa.types.is_large_binary(found)
        or pa.types.is_binary_view(found)
        or pa.types.is_fixed_size_binary(found)
    )


def _is_float(found: pa.DataType) -> bool:
    return pa.types.is_float32(found) or pa.types.is_float64(found)


def _is_naive(found: pa.DataType) -> bool:
    return pa.types.is_timestamp(found) and found.tz is None


def _timestamp(found: pa.DataType) -> Way | None:
    """Without a time zone it is taken as UTC, in which epochs run: as Spark casts timestamp_ntz to timestamp there."""
    if not pa.types.is_timestamp(found):
        return None
    return Way.VALUES if found.unit == "ns" else Way.EITHER


def _decimal(declared: t.DecimalType, found: pa.DataType) -> Way | None:
    whole, part = declared.precision - declared.scale, declared.scale
    if found == pa.uint64() and whole >= 20:
        return Way.EITHER
    if pa.types.is_integer(found):
        # Arrow's own decimals have room for the digits of any integer only up to here.
        return Way.VALUES if part <= 18 else None
    if not pa.types.is_decimal(found):
        return None
    return Way.EITHER if found.precision - found.scale <= whole and found.scale <= part else Way.VALUES


def _fits_nested(declared: t.ArrayType | t.StructType | t.MapType, found: pa.DataType) -> bool:
    if isinstance(declared, t.ArrayType):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _spark_reads(declared.elementType, found.value_type)
    if isinstance(declared, t.MapType):
        return (
            pa.types.is_map(found)
            and _spark_reads(declared.keyType, found.key_type)
            and _spark_reads(declared.valueType, found.item_type)
        )
    if not pa.types.is_struct(found):
        return False
    inner = {found.field(i).name.lower(): found.field(i).type for i in range(found.num_fields)}
    return all(
        field.name.lower() in inner and _spark_reads(field.dataType, inner[field.name.lower()])
        for field in declared.fields
    )


def _spark_reads(declared: t.DataType, found: pa.DataType) -> bool:
    return way(declared, found) in (Way.EITHER, Way.SPARK)
