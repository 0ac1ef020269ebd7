"""Makes sinks from their descriptions, and says before anything runs what a sink could not take."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.flow import endpoints, table_sink
from holdfast.flow.flow_plan import FlowPlan, SinkSpec
from holdfast.flow.kafka import KafkaSink as KafkaSinkDescription
from holdfast.flow.lake import DeltaSink, IcebergSink
from holdfast.flow.own_edges import OwnSink
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.definitions import Target
from holdfast.sinks.contract import Sink
from holdfast.sinks.discard import DiscardSink
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.kafka import KafkaSink
from holdfast.sinks.lake import lake_sink
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.table import TableSink
from holdfast.sinks.two_phase import TwoPhase, TwoPhaseSink


def make_sink(spec: SinkSpec, schema: pa.Schema, spark: SparkSession, ledger: Ledger) -> Sink:
    """The sink that takes rows of a schema.

    The session is for those that have tasks write, the ledger for those that prepare and commit.
    """
    match spec.description:
        case endpoints.ParquetSink(path=path, single_file=single_file):
            return ParquetSink(path, single_file, schema)
        case table_sink.TableSink(url=url, table=table, key=key):
            return TableSink(url, table, key, schema, spark)
        case endpoints.ForeachSink(function=function):
            return ForeachSink(function, spec.name, schema)
        case endpoints.DiscardSink():
            return DiscardSink()
        case KafkaSinkDescription() as description:
            return KafkaSink(description, schema)
        case DeltaSink() | IcebergSink() as description:
            return lake_sink(description, schema)
        case OwnSink(make=make):
            return _own(make(schema), spec.name, schema, ledger)


def _own(made: object, name: str, schema: pa.Schema, ledger: Ledger) -> Sink:
    if isinstance(made, TwoPhase):
        return TwoPhaseSink(made, name, schema, ledger)
    if not isinstance(made, Sink):
        raise PlanError(
            f"what hf.own_sink makes for {name!r} is a {type(made).__name__}, and no sink",
            operation="plan",
            hint="It needs place, open, publish and close, or the methods of holdfast.edges.TwoPhase.",
        )
    return made


def check_sinks(
    plan: FlowPlan, schemas: Mapping[str, pa.Schema], spark: SparkSession, ledger: Ledger
) -> dict[str, Target]:
    """Raise for a sink that cannot take the rows it would be given; `schemas` are by the sink's name.

    Returns what they publish to, as far as that has a name which stays.
    """
    places: dict[object, str] = {}
    targets: dict[str, Target] = {}
    for spec in plan.sinks:
        try:
            place = make_sink(spec, schemas[spec.name], spark, ledger).place
        except PlanError as error:
            raise error.at(stage=spec.stage) from error.__cause__
        if place is not None and place in places:
            raise PlanError(
                f"sinks {places[place]!r} and {spec.name!r} have one target", operation="plan", stage=spec.stage,
                hint="Give every sink a target of its own, or send a union of the streams to one sink.",
            )  # fmt: skip
        places[place] = spec.name
        if lasting := _lasting(place):
            targets[spec.name] = Target(spec.stage, lasting)
    return targets


def _lasting(place: object) -> str | None:
    """A digest of a place that is the same in every process; None if it is not made of plain values."""
    parts = place if isinstance(place, tuple) else (place,)
    if place is None or not all(part is None or isinstance(part, str | int | Path) for part in parts):
        return None
    return hashlib.blake2b("\n".join(map(str, parts)).encode(), digest_size=16).hexdigest()
