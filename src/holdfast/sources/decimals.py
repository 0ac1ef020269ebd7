"""Decimals in text: a number with more digits than its type has is malformed, not rounded.

Spark's parsers of JSON and CSV round to the scale, and as text Spark gives only the strings of a JSON object exactly:
its numbers become doubles on the way. So a CSV column is read as text and made a number here; a line of JSON that may
hold digits too many is read once more, with its numbers in quotes. Zeros at the end are no digits too many: 1.500 is a
decimal(10,2).
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

# What Spark takes for a decimal, once commas are gone: the digits before the point, those behind it, the exponent.
_NUMBER = r"^[+-]?([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,9}))?$"


def scales(kind: t.DataType) -> set[int]:
    """The places behind the point of all decimals in a type."""
    match kind:
        case t.DecimalType():
            return {kind.scale}
        case t.ArrayType():
            return scales(kind.elementType)
        case t.MapType():
            return scales(kind.valueType)
        case t.StructType():
            return set().union(*(scales(field.dataType) for field in kind.fields))
    return set()


def as_text(kind: t.DataType) -> t.DataType:
    """The type with a string in the place of every decimal."""
    match kind:
        case t.DecimalType():
            return t.StringType()
        case t.ArrayType():
            return t.ArrayType(as_text(kind.elementType))
        case t.MapType():
            return t.MapType(kind.keyType, as_text(kind.valueType))
        case t.StructType():
            return t.StructType([t.StructField(field.name, as_text(field.dataType)) for field in kind.fields])
    return kind


def number(text: Column, kind: t.DataType) -> Column:
    """A text as a decimal; null where it is none, or not exactly."""
    assert isinstance(kind, t.DecimalType)
    bare = f.regexp_replace(text, ",", "")
    return f.when(_exact(bare, kind.scale), bare.try_cast(kind))


def any_inexact(text: Column, kind: t.DataType) -> Column:
    """Whether a decimal in a column, of which there is the text, has too many places; false where it has none."""
    match kind:
        case t.DecimalType():
            return text.isNotNull() & ~_exact(f.regexp_replace(text, ",", ""), kind.scale)
        case t.ArrayType():
            return _any(text, lambda element: any_inexact(element, kind.elementType))
        case t.MapType():
            return _any(f.map_values(text), lambda value: any_inexact(value, kind.valueType))
        case t.StructType():
            wrong = f.lit(False)
            for field in kind.fields:
                if scales(field.dataType):
                    wrong = wrong | any_inexact(text.getField(field.name), field.dataType)
            return f.coalesce(wrong, f.lit(False))
    return f.lit(False)


def may_be_inexact(line: Column, schema: t.StructType) -> Column:
    """Whether a line of JSON has a number with more places than one of its decimals: nearly none has.

    A digit, point or exponent that is written as an escape is looked into as well.
    """
    places = min(scales(schema)) + 1
    return line.rlike(rf"\.[0-9]{{{places},}}|[0-9.][eE]-|\\u00[2-6]")


def with_numbers_in_quotes(line: Column) -> Column:
    """A JSON object with strings for its numbers."""
    # Without escaped quotes and backslashes, every second part between quotes is inside a string.
    plain = f.replace(f.replace(line, f.lit(r"\\"), f.lit(r"\u005c")), f.lit(r"\""), f.lit(r"\u0022"))
    parts = f.transform(
        f.split(plain, '"', -1),
        lambda part, at: f.when(
            at % 2 == 0, f.regexp_replace(part, r"(-?[0-9][0-9.eE+-]*)", '"$1"')
        ).otherwise(part),
    )
    return f.array_join(parts, '"')


def _any(values: Column, wrong: Callable[[Column], Column]) -> Column:
    return f.coalesce(f.exists(values, wrong), f.lit(False))


def _exact(bare: Column, scale: int) -> Column:
    """Whether a text is a number with no digit but zero behind so many places."""
    whole, fraction = f.regexp_extract(bare, _NUMBER, 1), f.regexp_extract(bare, _NUMBER, 2)
    exponent = f.coalesce(f.regexp_extract(bare, _NUMBER, 3).try_cast("bigint"), f.lit(0))
    digits = f.concat(whole, fraction)
    significant = f.rtrim(digits, f.lit("0"))
    places = f.length(fraction) - (f.length(digits) - f.length(significant)) - exponent
    exact = bare.rlike(_NUMBER) & (digits != "") & ((significant == "") | (places <= scale))
    # Nearly all numbers are seen to fit at a glance.
    return bare.rlike(rf"^[+-]?[0-9]+(\.[0-9]{{0,{scale}}})?$") | exact
