"""Holdfast keeps PySpark streams correct and alive through failures."""

from holdfast.core.errors import (
    FencedError,
    FlowError,
    FlowImportError,
    HoldfastError,
    InputError,
    LedgerError,
    PlanError,
    SinkError,
    StateSchemaError,
    StorageError,
)
from holdfast.flow.aggregates import (
    Aggregate,
    approx_distinct,
    avg,
    count,
    first,
    last,
    max,
    min,
    stddev,
    sum,
    variance,
)
from holdfast.flow.endpoints import discard, files, foreach, parquet, rows, table
from holdfast.flow.generate import generate
from holdfast.flow.own import Context, each_key
from holdfast.runtime.flow import Flow

__all__ = [
    "Aggregate",
    "Context",
    "FencedError",
    "Flow",
    "FlowError",
    "FlowImportError",
    "HoldfastError",
    "InputError",
    "LedgerError",
    "PlanError",
    "SinkError",
    "StateSchemaError",
    "StorageError",
    "approx_distinct",
    "avg",
    "count",
    "discard",
    "each_key",
    "files",
    "first",
    "foreach",
    "generate",
    "last",
    "max",
    "min",
    "parquet",
    "rows",
    "stddev",
    "sum",
    "table",
    "variance",
]
