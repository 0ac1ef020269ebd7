"""Schemas as users write them."""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.ddl import Type, columns_of

_PLAIN: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
}


def parse_schema(what: str, ddl: str) -> t.StructType:
    """Columns and types from text such as `"id string, amount double"`; `what` is whose they are."""
    try:
        schema = t.DataType.fromDDL(ddl)
    except ParseException as error:
        raise PlanError(
            f"the schema of {what} cannot be read: {error.getMessage() or error}",
            operation="bind",
            hint="Write it as Spark DDL, such as 'id string, amount double, ts timestamp'.",
        ) from error
    if not isinstance(schema, t.StructType):
        raise PlanError(f"the schema of {what} is one type, not columns: {ddl}", operation="bind")
    return schema


def schema_without_spark(what: str, ddl: str) -> t.StructType | None:
    """The same without a session; None if it has a type that only Spark knows."""
    columns = columns_of(what, ddl).columns
    if not all(kind.is_known for _, kind in columns):
        return None
    return t.StructType([t.StructField(name, _type(kind)) for name, kind in columns])


def _type(kind: Type) -> t.DataType:
    match kind.name:
        case "decimal":
            return t.DecimalType(*kind.numbers)
        case "array":
            return t.ArrayType(_type(kind.parts[0]))
        case "map":
            return t.MapType(_type(kind.parts[0]), _type(kind.parts[1]))
        case "struct":
            fields = zip(kind.names, kind.parts, strict=True)
            return t.StructType([t.StructField(name, _type(part)) for name, part in fields])
        case _:
            return _PLAIN[kind.name]
