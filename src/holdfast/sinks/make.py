"""Makes sinks from their descriptions, and says before anything runs what a sink could not take."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.flow import endpoints
from holdfast.flow.planner import FlowPlan, SinkSpec
from holdfast.sinks.contract import Sink
from holdfast.sinks.discard import DiscardSink
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.sqlite import Sqlite
from holdfast.sinks.table import TableSink


def make_sink(spec: SinkSpec, schema: pa.Schema, spark: SparkSession) -> Sink:
    """The sink that takes rows of a schema; the session is for those that have tasks write."""
    match spec.description:
        case endpoints.ParquetSink(path=path, single_file=single_file):
            return ParquetSink(path, single_file)
        case endpoints.TableSink(url=url, table=table, key=key):
            return TableSink(url, table, key, schema)
        case endpoints.ForeachSink(function=function):
            return ForeachSink(function, spec.name, schema)
        case endpoints.DiscardSink():
            return DiscardSink()


def check_sinks(plan: FlowPlan, schemas: Mapping[str, pa.Schema]) -> None:
    """Raise for a sink that cannot take the rows it would be given; `schemas` are by the sink's name."""
    places: dict[object, str] = {}
    for spec in plan.sinks:
        _check_columns(spec, schemas[spec.name])
        place = _place(spec)
        if place is not None and place in places:
            raise PlanError(
                f"sinks {places[place]!r} and {spec.name!r} have one target", operation="plan", stage=spec.stage,
                hint="Give every sink a target of its own, or send a union of the streams to one sink.",
            )  # fmt: skip
        places[place] = spec.name


def _place(spec: SinkSpec) -> object:
    match spec.description:
        case endpoints.ParquetSink(path=path):
            return ParquetSink(path).path
        case endpoints.TableSink(url=url, table=table):
            return Sqlite(url).path, Sqlite.fold(table)
        case _:
            return None


def _check_columns(spec: SinkSpec, schema: pa.Schema) -> None:
    match spec.description:
        case endpoints.ParquetSink(single_file=False):
            _check_parquet(spec, schema)
        case endpoints.TableSink() as description:
            _check_table(spec, description, schema)


def _check_parquet(spec: SinkSpec, schema: pa.Schema) -> None:
    # Readers take the column from the directory's name, and Spark does not tell upper from lower case.
    hidden = [name for name in schema.names if name.lower() == "epoch"]
    if hidden:
        raise PlanError(
            f"the column {hidden[0]!r} would be hidden by the column 'epoch' that readers of hf.parquet take from "
            "the names of the directories",
            operation="plan",
            stage=spec.stage,
            hint="Rename the column in a transform, or use hf.parquet(..., single_file=True).",
        )


def _check_table(spec: SinkSpec, description: endpoints.TableSink, schema: pa.Schema) -> None:
    missing = [name for name in description.key or () if name not in schema.names]
    if missing:
        raise PlanError(
            f"hf.table has key={list(description.key or ())}, but there is no column {missing[0]!r}",
            operation="plan",
            stage=spec.stage,
            hint=f"The columns are {', '.join(schema.names)}.",
        )
    database = Sqlite(description.url)
    unfit = [field for field in schema if database.storage_of(field.type) is None]
    if unfit:
        raise PlanError(
            f"hf.table cannot store the column {unfit[0].name!r}, a {unfit[0].type}",
            operation="plan",
            stage=spec.stage,
            hint="Make it text in a transform before the sink: to_json(...) for nested values, cast(... as string) "
            "for others.",
        )
