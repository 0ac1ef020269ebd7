"""Schemas as users write them."""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import types as t

from holdfast.core.errors import PlanError


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
