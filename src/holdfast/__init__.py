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
from holdfast.flow.aggregates import avg, count, max, min, stddev, sum, variance
from holdfast.flow.endpoints import discard, files, parquet, rows
from holdfast.runtime.flow import Flow

__all__ = [
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
    "avg",
    "count",
    "discard",
    "files",
    "max",
    "min",
    "parquet",
    "rows",
    "stddev",
    "sum",
    "variance",
]
