"""Gives a planned flow its types: every stage is applied to an empty input with the right schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.nodes import Dedup, Join, RunningAggregate, WindowAggregate
from holdfast.flow.planner import Apply, Concat, FlowPlan, Input, Prefix, Read, StageSpec
from holdfast.flow.windows import Session
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import PREFIX
from holdfast.spark.operators.aggregate import bind_aggregate
from holdfast.spark.operators.contract import Operator
from holdfast.spark.operators.dedup import bind_dedup
from holdfast.spark.operators.event_time import INPUT, Clock
from holdfast.spark.operators.join import JoinOperator
from holdfast.spark.operators.join_binding import bind_join
from holdfast.spark.operators.sessions import bind_session
from holdfast.spark.operators.windows import bind_window
from holdfast.spark.session import ansi_mode


@dataclass(frozen=True)
class BoundStage:
    """A stage with its types: ready to be run on Spark."""

    spec: StageSpec
    operator: Operator | None
    output: t.StructType
    arrow_output: pa.Schema
    fingerprint: str

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.spec.name


def bind(
    spark: SparkSession, plan: FlowPlan, sources: Mapping[str, t.StructType], hash_bits: int = 64
) -> tuple[BoundStage, ...]:
    """Bind all stages of a flow, in order."""
    schemas = {f"source:{name}": schema for name, schema in sources.items()}
    bound = []
    for spec in plan.stages:
        stage = _bind_stage(spark, spec, schemas, hash_bits)
        schemas[Input("channel", spec.name, "out").id] = stage.output
        bound.append(stage)
    return tuple(bound)


def _bind_stage(
    spark: SparkSession, spec: StageSpec, schemas: Mapping[str, t.StructType], bits: int
) -> BoundStage:
    empty = {origin.id: spark.createDataFrame([], schemas[origin.id]) for origin in spec.inputs}
    sides = [apply_prefix(spec.name, prefix, empty) for prefix in spec.sides]
    for side in sides:
        _check_columns(spec.name, side.schema)
    ansi = ansi_mode(spark)
    operator = _bind_operator(spec, sides, ansi, bits)
    fields = sides[0].schema.fields
    rows = t.StructType([t.StructField(field.name, field.dataType, True) for field in fields])
    output = operator.output_ddl if operator else rows
    # The mode decides what an overflow does, so a plan made under the other is a plan of other code.
    fingerprint = f"{spec.fingerprint()}-{'ansi' if ansi else 'legacy'}"
    return BoundStage(spec, operator, output, arrow_schema(spec.name, output), fingerprint)


def _bind_operator(spec: StageSpec, sides: Sequence[DataFrame], ansi: bool, bits: int) -> Operator | None:
    name, node, df = spec.name, spec.operator, sides[0]
    match node:
        case None:
            return None
        case RunningAggregate():
            return bind_aggregate(name, node, df, ansi, bits)
        case WindowAggregate(window=window):
            clock = Clock.of(name, window.time, df.schema, len(spec.inputs), spec.side_ports)
            if isinstance(window.kind, Session):
                return bind_session(name, node, df, clock, ansi, bits)
            return bind_window(name, node, df, clock, ansi, bits)
        case Dedup():
            clock = Clock.of(name, node.time, df.schema, len(spec.inputs), spec.side_ports)
            return bind_dedup(name, node, df, clock, bits)
        case Join():
            schemas = sides[0].schema, sides[1].schema
            return bind_join(
                name, node, schemas, tuple(feed.side for feed in spec.feeds), spec.side_ports, bits
            )


def event_rows(stage: BoundStage, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of a stage's inputs after the user's stateless code; those of a join's two sides in one table."""
    sides = [_side_rows(stage.spec, side, inputs) for side in range(len(stage.spec.sides))]
    return stage.operator.united(sides) if isinstance(stage.operator, JoinOperator) else sides[0]


def _side_rows(spec: StageSpec, side: int, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of one side.

    Where the stage has event time and a side of several inputs, each row says which feed it came from. No column
    would survive the user's code, so that is applied to one input at a time, with the others empty: Spark plans
    those away, and code that treats rows one by one gives the same rows.
    """
    prefix = spec.sides[side]
    if len(spec.feeds) == len(spec.sides) or not isinstance(spec.operator, WindowAggregate | Dedup | Join):
        return apply_prefix(spec.name, prefix, inputs)
    empty = {name: df.limit(0) for name, df in inputs.items()}
    first, *others = [
        apply_prefix(spec.name, prefix, {**empty, feed.input.id: inputs[feed.input.id]}).withColumn(
            INPUT, f.lit(number)
        )
        for number, feed in enumerate(spec.feeds)
        if feed.side == side
    ]
    for other in others:
        first = first.unionByName(other)
    return first


def apply_prefix(stage: str, prefix: Prefix, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Apply the user's stateless code to the inputs of a stage."""
    match prefix:
        case Read(input=origin):
            return inputs[origin.id]
        case Concat(children=children):
            first, *others = (apply_prefix(stage, child, inputs) for child in children)
            for other in others:
                first = _spark_checked(stage, lambda left=first, right=other: left.unionByName(right))
            return first
        case Apply(child=child, function=function):
            df = apply_prefix(stage, child, inputs)
            result = _spark_checked(stage, lambda: function(df))
            if not hasattr(result, "mapInArrow"):
                raise PlanError(
                    f"a transform returned {result!r}, not a DataFrame", operation="transform", stage=stage
                )
            return result


def parse_schema(name: str, ddl: str) -> t.StructType:
    """A schema as the user wrote it: `"id string, amount double"`."""
    try:
        schema = t.DataType.fromDDL(ddl)
    except ParseException as error:
        raise PlanError(
            f"the schema of source {name!r} cannot be read: {error.getMessage() or error}",
            operation="bind",
            hint="Write it as Spark DDL, such as 'id string, amount double, ts timestamp'.",
        ) from error
    if not isinstance(schema, t.StructType):
        raise PlanError(f"the schema of source {name!r} is one type, not columns: {ddl}", operation="bind")
    return schema


def _spark_checked(stage: str, step: object) -> DataFrame:
    try:
        return step()  # type: ignore[operator]
    except AnalysisException as error:
        raise PlanError(
            f"Spark cannot analyse a step of the stage: {error.getMessage() or error}",
            operation="transform",
            stage=stage,
        ) from error


def _check_columns(stage: str, schema: t.StructType) -> None:
    names = [name.lower() for name in schema.names]
    reserved = [name for name in names if name.startswith(PREFIX)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if reserved:
        raise PlanError(
            f"column names that start with {PREFIX} are reserved: {reserved}", operation="bind", stage=stage
        )
    if twice:
        raise PlanError(f"there are several columns named {', '.join(twice)}", operation="bind", stage=stage)
