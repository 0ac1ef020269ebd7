"""Looks at a Parquet file's footer: is it whole, and does it hold the declared columns in types that Spark reads?

Spark itself would give nulls for a column that is not there, and wrong numbers for some unsigned ones.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t

from holdfast.sources.fitness import Facts, Unfit

_WHOLE = "Mend or remove it. Write files elsewhere and rename them into the directory when complete."
# Spark marks files whose old dates are in the calendar of their day, and converts them when it reads them.
_OLD_CALENDAR = b"org.apache.spark.legacy"

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())

# By declared type, the integers that Spark reads into it without changing a value.
_INTEGERS: dict[type[t.DataType], tuple[pa.DataType, ...]] = {
    t.ByteType: _SIGNED[:1],
    t.ShortType: (*_SIGNED[:2], pa.uint8()),
    t.IntegerType: (*_SIGNED[:3], pa.uint8(), pa.uint16()),
    t.LongType: (*_SIGNED, pa.uint8(), pa.uint16(), pa.uint32()),
    t.DoubleType: (*_SIGNED[:3], pa.uint8(), pa.uint16()),
}

# What to declare for an unsigned column, which Spark SQL has no type of its own for.
_UNSIGNED = {
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
}


def parquet_facts(file: BinaryIO, declared: t.StructType) -> Facts:
    """The rows that the footer promises; Unfit if they cannot be read as declared."""
    try:
        footer = pq.read_metadata(file)
        found = footer.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's fault, not the file's
        raise Unfit(f"it is not a whole Parquet file: {error}", _WHOLE) from error
    int96 = _int96_columns(footer)
    for field in declared.fields:
        _check(field, found, int96)
    return Facts(int(footer.num_rows), _columns(footer, found, declared))


def signature(columns: pa.Schema) -> str:
    """Names and types, short."""
    text = repr([(field.name, str(field.type)) for field in columns])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _columns(footer: pq.FileMetaData, found: pa.Schema, declared: t.StructType) -> str | None:
    """The signature of the declared columns as a file has them; None if only Spark knows how to read them."""
    once = all(found.names.count(name) == 1 for name in declared.names)
    if not once or any(key.startswith(_OLD_CALENDAR) for key in footer.metadata or {}):
        return None
    return signature(pa.schema([found.field(name) for name in declared.names]))


def _int96_columns(footer: pq.FileMetaData) -> set[str]:
    """Columns of Spark's old timestamps, which Arrow takes for nanoseconds and Spark reads."""
    columns = [footer.schema.column(i) for i in range(footer.num_columns)]
    return {column.path.partition(".")[0] for column in columns if column.physical_type == "INT96"}


def _check(field: t.StructField, found: pa.Schema, int96: set[str]) -> None:
    name = _name_in(found, field.name)
    if name is None:
        raise Unfit(
            f"it has no column {field.name!r}: its columns are {', '.join(found.names)}",
            "Declare the columns that the files have in schema=, or write the file with all of them.",
        )
    kind = found.field(name).type
    if name in int96 and isinstance(field.dataType, t.TimestampType | t.TimestampNTZType):
        return
    if pa.types.is_timestamp(kind) and kind.unit == "ns" and name not in int96:
        raise Unfit(
            f"column {name!r} holds timestamps in nanoseconds, which Spark does not read",
            "Write microseconds: pq.write_table(..., coerce_timestamps='us'), or astype('datetime64[us]') in pandas.",
        )
    if not _fits(field.dataType, kind):
        declared = field.dataType.simpleString()
        unsigned = _UNSIGNED.get(kind)
        raise Unfit(
            f"column {name!r} is {kind} in the file and declared as {declared}",
            f"Declare it as {unsigned}, or write it signed."
            if unsigned
            else "Declare the type that the file has in schema=, or write the file with the declared one.",
        )


def _name_in(found: pa.Schema, name: str) -> str | None:
    """The column as the file spells it; Spark does not mind upper and lower case."""
    if name in found.names:
        return name
    return next((other for other in found.names if other.lower() == name.lower()), None)


def _fits(declared: t.DataType, found: pa.DataType) -> bool:
    """Whether Spark reads a file's type as the declared one without changing a value."""
    if pa.types.is_dictionary(found):
        return _fits(declared, found.value_type)
    if found in _INTEGERS.get(type(declared), ()):
        return True
    match declared:
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return False
        case t.StringType():
            # A view is how its writer held it in memory: in the file it is a string like any other.
            return (
                pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
            )
        case t.BinaryType():
            return (
                pa.types.is_binary(found)
                or pa.types.is_large_binary(found)
                or pa.types.is_binary_view(found)
                or pa.types.is_fixed_size_binary(found)
            )
        case t.BooleanType():
            return pa.types.is_boolean(found)
        case t.FloatType():
            return pa.types.is_float32(found)
        case t.DoubleType():
            return pa.types.is_float32(found) or pa.types.is_float64(found)
        case t.DateType():
            return pa.types.is_date32(found)
        case t.TimestampType() | t.TimestampNTZType():
            return pa.types.is_timestamp(found) and found.unit != "ns"
        case t.DecimalType():
            return _fits_decimal(declared, found)
        case t.ArrayType() | t.StructType() | t.MapType():
            return _fits_nested(declared, found)
        case _:
            return True  # Spark's own reader has the word on its rarer types


def _fits_decimal(declared: t.DecimalType, found: pa.DataType) -> bool:
    if found == pa.uint64():
        return declared.precision - declared.scale >= 20
    if not pa.types.is_decimal(found):
        return False
    whole, part = declared.precision - declared.scale, declared.scale
    return found.precision - found.scale <= whole and found.scale <= part


def _fits_nested(declared: t.ArrayType | t.StructType | t.MapType, found: pa.DataType) -> bool:
    if isinstance(declared, t.ArrayType):
        return (pa.types.is_list(found) or pa.types.is_large_list(found)) and _fits(
            declared.elementType, found.value_type
        )
    if isinstance(declared, t.MapType):
        return (
            pa.types.is_map(found)
            and _fits(declared.keyType, found.key_type)
            and _fits(declared.valueType, found.item_type)
        )
    if not pa.types.is_struct(found):
        return False
    inner = {found.field(i).name.lower(): found.field(i).type for i in range(found.num_fields)}
    return all(
        field.name.lower() in inner and _fits(field.dataType, inner[field.name.lower()])
        for field in declared.fields
    )
