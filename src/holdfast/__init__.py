"""Holdfast keeps PySpark streams correct and alive through failures."""

from typing import TYPE_CHECKING

from holdfast.core.errors import (
    CodeError,
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
from holdfast.core.version import __version__
from holdfast.flow.aggregates import (
    Aggregate,
    approx_distinct,
    avg,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    stddev,
    sum,
    variance,
)
from holdfast.flow.collected import collect_list, collect_set, top_k
from holdfast.flow.endpoints import discard, files, foreach, parquet, rows
from holdfast.flow.generate import generate
from holdfast.flow.habits import unknown_function as _unknown_function
from holdfast.flow.kafka import kafka, kafka_sink
from holdfast.flow.lake import delta, delta_source, iceberg
from holdfast.flow.own import Context, each_key
from holdfast.flow.own_edges import own_sink, own_source
from holdfast.flow.percentiles import percentile
from holdfast.flow.policies import (
    active_standby,
    gap,
    no_sync,
    passive_standby,
    snapshot,
    strong_production,
    upstream_backup,
)
from holdfast.flow.streams import read_stream
from holdfast.flow.table_sink import table
from holdfast.runtime.flow import Flow
from holdfast.runtime.register import forget_reader, register

__all__ = [
    "Aggregate",
    "CodeError",
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
    "__version__",
    "active_standby",
    "approx_distinct",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "delta",
    "delta_source",
    "discard",
    "each_key",
    "files",
    "first",
    "foreach",
    "forget_reader",
    "gap",
    "generate",
    "iceberg",
    "kafka",
    "kafka_sink",
    "last",
    "max",
    "min",
    "no_sync",
    "own_sink",
    "own_source",
    "parquet",
    "passive_standby",
    "percentile",
    "read_stream",
    "register",
    "rows",
    "snapshot",
    "stddev",
    "strong_production",
    "sum",
    "table",
    "top_k",
    "upstream_backup",
    "variance",
]

# A type checker would believe that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise AttributeError(_unknown_function(name, __all__))
