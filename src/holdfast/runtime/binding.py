"""Binds a flow to types, a session and the ledger, and writes down what the ledger has not seen before."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.core.json import Json
from holdfast.flow.definition import definition_of
from holdfast.flow.flow_plan import FlowPlan
from holdfast.ledger import definitions, epochs, snapshots, source_schemas, stages
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.starts import begin_sink
from holdfast.ledger.substreams import register_scope
from holdfast.runtime.context import Runtime
from holdfast.runtime.progress import Progress
from holdfast.runtime.schemas import declared, with_schemas
from holdfast.runtime.script import UNSCRIPTED, Script
from holdfast.sinks.make import check_sinks
from holdfast.sources.make import make_source
from holdfast.sources.table_files import TableFiles
from holdfast.spark.bind import BoundStage, bind
from holdfast.spark.cores import Cores
from holdfast.spark.labels import labels_of_flow


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
    plan = with_schemas(plan, ledger)
    sources = {name: make_source(plan, name, root, ledger) for name in plan.sources}
    tables = {name: TableFiles(name, spec.description) for name, spec in plan.tables.items()}
    found = bind(
        spark,
        plan,
        {name: source.schema() for name, source in sources.items()},
        hash_bits,
        {name: table.schema() for name, table in tables.items()},
    )
    named = {stage.name: stage for stage in found}
    targets = check_sinks(
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
        Cores(spark, tasks),
        tasks,
        Progress(),
        worker,
        group,
        own,
        direct,
        script,
        labels_of_flow(plan, found),
        tables,
        targets,
    )


def register(rt: Runtime) -> None:
    """Write down the group's stages, cursors and sinks, as far as they are new, and check all of the flow's."""
    found = {stage.name: definition_of(stage.spec, _state(stage)) for stage in rt.stages.values()}
    with rt.ledger.write(rt.generation) as tx:
        definitions.settle(tx, rt.generation, rt.own, found, rt.targets)
        own = {name: one for name, one in declared(rt.plan).items() if name in rt.own_sources}
        source_schemas.settle(tx, rt.generation, own)
        for stage in rt.own_stages:
            view = stage.operator.view.to_json() if stage.operator else None
            inputs = [origin.id for origin in stage.spec.inputs]
            begins = stage.spec.read_from
            stages.register(tx, rt.generation, stage.name, _state(stage), inputs, view, begins)
        snapshots.set_region(tx, rt.own, [name for name in rt.own if name in rt.region])
        for sink in rt.own_sinks:
            begin_sink(tx, sink.name, sink.stage, sink.input.id, rt.generation)
        for scope in rt.labels.scopes:
            register_scope(tx, scope.name, scope.tracker, scope.graph)


def _state(stage: BoundStage) -> Json | None:
    return stage.operator.description if stage.operator else None


def resume_progress(rt: Runtime) -> None:
    """Every stage as the last commit left it."""
    with rt.ledger.read() as tx:
        for name in rt.own:
            row = epochs.stage_row(tx, name)
            last = epochs.manifest_of(tx, row, row.head) or {}
            rt.progress.resume(name, row.head, last.get("state_rows", 0), last.get("totals", {}))
