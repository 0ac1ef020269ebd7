"""Spark types as the Arrow types in which `mapInArrow` delivers them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.core.errors import PlanError


def arrow_schema(stage: str, schema: t.StructType) -> pa.Schema:
    """The Arrow schema of a Spark schema; every column may be null."""
    try:
        arrow = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise PlanError(
            f"a column has a type that Arrow cannot carry: {error}", operation="bind", stage=stage
        ) from error
    return pa.schema([field.with_nullable(True).remove_metadata() for field in arrow])
