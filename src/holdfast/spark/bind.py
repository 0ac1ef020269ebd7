"""Gives a planned flow its types: every stage is applied to an empty input with the right schema."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.code_errors import raised_by
from holdfast.core.errors import HoldfastError, PlanError
from holdfast.flow.flow_plan import FlowPlan, StageSpec
from holdfast.flow.nodes import (
    Dedup,
    Join,
    OwnOperator,
    RunningAggregate,
    Substream,
    WindowAggregate,
    time_of,
)
from holdfast.flow.ports import OUT, QUARANTINE, side_of
from holdfast.flow.prefixes import Apply, Concat, Input, Prefix, Read, leaves, untouched
from holdfast.flow.verbs import Verb
from holdfast.flow.windows import Session
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.feedback import check_closed, declared
from holdfast.spark.keys import PREFIX
from holdfast.spark.operators.aggregate import bind_aggregate
from holdfast.spark.operators.contract import DirectOperator, Operator
from holdfast.spark.operators.dedup import bind_dedup
from holdfast.spark.operators.distinct import bind_distinct
from holdfast.spark.operators.event_time import INPUT, Clock
from holdfast.spark.operators.join_binding import bind_join
from holdfast.spark.operators.sessions import bind_session
from holdfast.spark.operators.stateful import bind_stateful
from holdfast.spark.operators.substream import bind_substream
from holdfast.spark.operators.two_sides import TwoSides
from holdfast.spark.operators.windows import bind_window
from holdfast.spark.row_wise import as_stream, check_row_wise
from holdfast.spark.schemas import parse_schema
from holdfast.spark.session import ansi_mode
from holdfast.spark.verbs import applied

T = TypeVar("T")

# What a source has set aside: the file, the row as it is (null where it is the file as a whole), and why.
QUARANTINED = "file string, row string, reason string"


@dataclass(frozen=True)
class BoundStage:
    """A stage with its types: ready to be run on Spark."""

    spec: StageSpec
    operator: Operator | None
    output: t.StructType
    arrow_output: pa.Schema
    arrow_inputs: tuple[
        pa.Schema, ...
    ]  # by side, of the rows before the operator, where a side port carries them
    fingerprint: str
    direct: bool  # whether its tasks can read its inputs themselves

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.spec.name

    def port_schema(self, port: str) -> pa.Schema:
        """The columns of a port's segments."""
        return self.arrow_output if port == OUT else self.arrow_inputs[side_of(port)]


def bind(
    spark: SparkSession,
    plan: FlowPlan,
    sources: Mapping[str, t.StructType],
    hash_bits: int = 64,
    tables: Mapping[str, t.StructType] | None = None,
) -> tuple[BoundStage, ...]:
    """Bind all stages of a flow, in order; `tables` are the columns of those that rows are enriched with."""
    schemas = {Input("source", name).id: schema for name, schema in sources.items()}
    schemas |= {Input("table", name).id: schema for name, schema in (tables or {}).items()}
    aside = parse_schema(QUARANTINE, QUARANTINED)
    schemas |= {Input("source", name, QUARANTINE).id: aside for name in sources}
    schemas |= declared(plan.loops)
    bound = []
    for spec in plan.stages:
        stage = _bind_stage(spark, spec, schemas, hash_bits, _reading(plan, spec))
        check_closed(plan.loops, spec.name, stage.output)
        schemas[Input("channel", spec.name, "out").id] = stage.output
        bound.append(stage)
    return tuple(bound)


def _bind_stage(
    spark: SparkSession, spec: StageSpec, schemas: Mapping[str, t.StructType], bits: int, reading: str
) -> BoundStage:
    empty = {origin.id: as_stream(spark.createDataFrame([], schemas[origin.id])) for origin in spec.inputs}
    tables = [Input("table", name).id for name in spec.tables]
    empty |= {name: spark.createDataFrame([], schemas[name]) for name in tables}
    sides = [apply_prefix(spec.name, prefix, empty) for prefix in spec.sides]
    for side, prefix in zip(sides, spec.sides, strict=True):
        _check_columns(spec.name, side)
        if not all(untouched(prefix, origin) for origin in leaves(prefix)):
            check_row_wise(spec.name, side)
    ansi = ansi_mode(spark)
    operator = _bind_operator(spec, sides, ansi, bits)
    fields = sides[0].schema.fields
    rows = t.StructType([t.StructField(field.name, field.dataType, True) for field in fields])
    output = operator.output_ddl if operator else rows
    # The mode decides what an overflow does, so a plan made under the other is a plan of other code; likewise
    # one whose sources read their items in another way.
    fingerprint = f"{spec.fingerprint()}-{reading}-{'ansi' if ansi else 'legacy'}"
    able = isinstance(operator, DirectOperator) and operator.direct is not None
    aside = tuple(arrow_schema(spec.name, side.schema) for side in sides) if spec.side_ports else ()
    return BoundStage(
        spec,
        operator,
        output,
        arrow_schema(spec.name, output),
        aside,
        fingerprint,
        able and _as_they_are(spec, schemas, [side.schema for side in sides]),
    )


def _as_they_are(spec: StageSpec, schemas: Mapping[str, t.StructType], sides: Sequence[t.StructType]) -> bool:
    """Whether the rows of all inputs reach the operator untouched, each once, in columns of the same types."""
    return spec.reads_each_once and all(
        spec.reads_as_is(feed.input, feed.side) and _kinds(schemas[feed.input.id]) == _kinds(sides[feed.side])
        for feed in spec.feeds
    )


def _kinds(schema: t.StructType) -> dict[str, t.DataType]:
    return {field.name: field.dataType for field in schema.fields}


def _reading(plan: FlowPlan, spec: StageSpec) -> str:
    """How the sources and tables of a stage make rows of their items, in short."""
    told = [plan.sources[origin.name].reading() for origin in spec.inputs if origin.kind == "source"]
    told += [plan.tables[name].description.reading() for name in spec.tables]
    return hashlib.blake2b("\n".join(told).encode(), digest_size=4).hexdigest()


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
        case Dedup(time=None):
            return bind_distinct(name, node, df, bits)
        case Dedup(time=time):
            assert time is not None
            clock = Clock.of(name, time, df.schema, len(spec.inputs), spec.side_ports)
            return bind_dedup(name, node, df, clock, bits)
        case OwnOperator():
            return bind_stateful(name, node, df, _clock(spec, df), len(spec.inputs), bits)
        case Substream():
            ports = spec.side_ports
            return bind_substream(name, node, df, _clock(spec, df), len(spec.inputs), ports, bits)
        case Join():
            schemas = sides[0].schema, sides[1].schema
            return bind_join(name, node, schemas, len(spec.feeds), spec.side_ports, bits)


def _clock(spec: StageSpec, df: DataFrame) -> Clock | None:
    time = time_of(spec.operator)
    return Clock.of(spec.name, time, df.schema, len(spec.inputs), spec.side_ports) if time else None


def event_rows(stage: BoundStage, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of a stage's inputs after the user's stateless code; those of a join's two sides in one table."""
    sides = [_side_rows(stage.spec, side, inputs) for side in range(len(stage.spec.sides))]
    return stage.operator.united(sides) if isinstance(stage.operator, TwoSides) else sides[0]


def _side_rows(spec: StageSpec, side: int, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of one side.

    Where the stage has event time and a side of several inputs, each row says which feed it came from. No column
    would survive the user's code, so that is applied to one input at a time, with the others empty: Spark plans
    those away, and code that treats rows one by one gives the same rows.
    """
    prefix = spec.sides[side]
    if len(spec.feeds) == len(spec.sides) or time_of(spec.operator) is None:
        return apply_prefix(spec.name, prefix, inputs)
    empty = {**inputs, **{feed.input.id: inputs[feed.input.id].limit(0) for feed in spec.feeds}}
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
                first = _spark_checked(stage, partial(first.unionByName, other))
            return first
        case Apply(child=child, function=function):
            df = apply_prefix(stage, child, inputs)
            if isinstance(function, Verb):
                step = partial(applied, function, df, inputs)
            else:
                step = partial(function, df)
            result = _spark_checked(stage, step)
            if not hasattr(result, "mapInArrow"):
                raise PlanError(
                    f"a transform returned {result!r}, not a DataFrame", operation="transform", stage=stage
                )
            return result


def _spark_checked(stage: str, step: Callable[[], T]) -> T:
    """What a step of the user's gives; what goes wrong in it says where."""
    try:
        return step()
    except AnalysisException as error:
        raise PlanError(
            f"Spark cannot analyse a step of the stage: {error.getMessage() or error}",
            operation="transform",
            stage=stage,
        ) from error
    except HoldfastError:
        raise
    except Exception as error:
        raise raised_by(error, "a transform", operation="transform").at(stage=stage) from error


def _check_columns(stage: str, df: DataFrame) -> None:
    # Over Connect a step is analysed only when its columns are asked for.
    schema = _spark_checked(stage, lambda: df.schema)
    names = [name.lower() for name in schema.names]
    reserved = [name for name in names if name.startswith(PREFIX)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if reserved:
        raise PlanError(
            f"column names that start with {PREFIX} are reserved: {reserved}", operation="bind", stage=stage
        )
    if twice:
        raise PlanError(f"there are several columns named {', '.join(twice)}", operation="bind", stage=stage)
