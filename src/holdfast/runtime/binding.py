"""Binds a flow to types, a session and the ledger, and writes down what the ledger has not seen before."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.flow import endpoints
from holdfast.flow.endpoints import SourceDescription
from holdfast.flow.generate import GenerateSource
from holdfast.flow.own_edges import OwnSource
from holdfast.flow.planner import FlowPlan
from holdfast.flow.streams import StreamSource
from holdfast.ledger import epochs, stages
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.holder import supervisor
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.context import Runtime
from holdfast.runtime.progress import Progress
from holdfast.runtime.script import UNSCRIPTED, Script
from holdfast.sinks.make import check_sinks
from holdfast.sources.contract import Source
from holdfast.sources.files import Files
from holdfast.sources.generate import Generate
from holdfast.sources.rows import Rows
from holdfast.sources.spark_stream import SparkStream
from holdfast.sources.stream_log import STREAMS
from holdfast.spark.bind import bind


def bound(
    plan: FlowPlan,
    root: Path,
    ledger: Ledger,
    spark: SparkSession,
    worker: str,
    group: str,
    *,
    tasks: int | None,
    hash_bits: int,
    direct: bool,
    script: Script = UNSCRIPTED,
) -> Runtime:
    """The flow bound to types and to a session, without any right to change anything yet."""
    sources = {name: _source(ledger, root, name, description) for name, description in plan.sources.items()}
    found = bind(spark, plan, {name: source.schema() for name, source in sources.items()}, hash_bits)
    named = {stage.name: stage for stage in found}
    check_sinks(
        plan, {sink.name: named[sink.stage].port_schema(sink.port) for sink in plan.sinks}, spark, ledger
    )
    own = next(one.stages for one in plan.groups if one.name == group)
    return Runtime(
        plan,
        named,
        sources,
        spark,
        ledger,
        root,
        0,
        tasks or _cores(spark),
        Progress(),
        worker,
        group,
        own,
        direct,
        script,
    )


def register(rt: Runtime) -> None:
    """Write down the group's stages, cursors and sinks, as far as they are new, and check the others."""
    for stage in rt.own_stages:
        schema = stage.operator.description if stage.operator else None
        view = stage.operator.view.to_json() if stage.operator else None
        inputs = [origin.id for origin in stage.spec.inputs]
        stages.register(rt.ledger, rt.generation, stage.name, schema, inputs, view)
    with rt.ledger.write(rt.generation) as tx:
        for sink in rt.own_sinks:
            start = epochs.stage_row(tx, sink.stage).head + 1
            stages.add_cursor(tx, f"sink:{sink.name}", sink.input.id, start)


def resume_progress(rt: Runtime) -> None:
    """Every stage as the last commit left it."""
    with rt.ledger.read() as tx:
        for name in rt.own:
            row = epochs.stage_row(tx, name)
            last = epochs.manifest_of(tx, row, row.head) or {}
            rt.progress.resume(name, row.head, last.get("state_rows", 0), last.get("totals", {}))


def _source(ledger: Ledger, root: Path, name: str, description: SourceDescription) -> Source:
    match description:
        case endpoints.FilesSource():
            return Files(name, description)
        case endpoints.RowsSource():
            return Rows(name, description)
        case GenerateSource():
            with ledger.read() as tx:
                first = ledger_inputs.items(tx, name, 0, 1)
            return Generate(name, description, *first)
        case OwnSource(make=make):
            return _own(name, make())
        case StreamSource():
            return SparkStream(name, description, root / STREAMS / name, lambda: supervisor(ledger))


def _own(name: str, made: object) -> Source:
    if not isinstance(made, Source):
        raise PlanError(
            f"what hf.own_source makes for {name!r} is a {type(made).__name__}, and no holdfast.edges.Source",
            operation="bind",
            hint="Inherit from holdfast.edges.Source.",
        )
    return made


def _cores(spark: SparkSession) -> int:
    """Tasks that run at the same time: as many as a local master has cores, else Spark's own setting."""
    master = spark.conf.get("spark.master", "") or ""
    local = re.match(r"local\[(\*|\d+)", master)
    if local:
        return (os.cpu_count() or 1) if local.group(1) == "*" else int(local.group(1))
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
