"""Types of what is fed back: declared before they are known, and held against what then comes."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.cycles import LoopSpec
from holdfast.flow.ports import OUT
from holdfast.flow.prefixes import Input
from holdfast.spark.schemas import parse_schema


def declared(loops: Sequence[LoopSpec]) -> dict[str, t.StructType]:
    """By input, the columns of what is fed back, as its readers were told."""
    return {Input("channel", loop.stage, OUT).id: _schema(loop) for loop in loops}


def check_closed(loops: Sequence[LoopSpec], stage: str, output: t.StructType) -> None:
    """Refuse a stage whose rows come back with other columns, other types or another order than declared."""
    for loop in loops:
        if loop.stage == stage and _spelled(_schema(loop)) != _spelled(output):
            raise PlanError(
                f"feedback {loop.name!r} is declared as {_spelled(_schema(loop))}, and closed with {_spelled(output)}",
                operation="bind",
                stage=stage,
                hint="Select and cast the columns in a transform before close_with, or declare the others.",
            )


def _schema(loop: LoopSpec) -> t.StructType:
    return parse_schema(f"feedback {loop.name!r}", loop.schema)


def _spelled(schema: t.StructType) -> str:
    """Columns as one writes them. Whether a value inside a column may be null is no part of it."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
