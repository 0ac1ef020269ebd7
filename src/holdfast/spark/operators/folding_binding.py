"""Aggregates bound to their types: what Spark says of their expressions, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.aggregates import Aggregate, DistinctCount
from holdfast.flow.collected import Collected, Top
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import has_digests, is_plain_text, unfit_for_comparison
from holdfast.spark.operators.accumulators import accumulator, partials
from holdfast.spark.operators.folding import BoundAggregate, Folding

# What Spark says of aggregates, window functions and generators in a filter.
_NOT_OF_A_ROW = ("INVALID_WHERE_CONDITION", "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE", "UNSUPPORTED_GENERATOR")


def bind_folding(
    stage: str, df: DataFrame, aggregates: Sequence[tuple[str, Aggregate]], ansi: bool
) -> Folding:
    """Work out the types of aggregates over a DataFrame that has the input's schema."""
    return Folding(tuple(_bind_one(stage, df, name, aggregate, ansi) for name, aggregate in aggregates))


def _typed(stage: str, df: DataFrame, name: str, expressions: list[str]) -> t.StructType:
    """The types that Spark gives to aggregate expressions."""
    with _explained(stage, df, name):
        return df.agg(*(f.expr(sql).alias(f"c{i}") for i, sql in enumerate(expressions))).schema


@contextmanager
def _explained(stage: str, df: DataFrame, name: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        raise PlanError(
            f"aggregate {name!r} cannot be computed: {error.getMessage() or error}",
            operation="bind",
            stage=stage,
            hint=f"The columns are {', '.join(df.columns)}.",
        ) from error


def _check_row_wise(stage: str, df: DataFrame, name: str, aggregate: Aggregate) -> None:
    """Refuse what is not an expression of single rows: Spark allows none of that in a filter."""
    written = [sql for sql in (aggregate.expression, aggregate.by) if sql and sql.strip() != "*"]
    with _explained(stage, df, name):
        try:
            _ = [df.where(f"({sql}) is null").schema for sql in written]
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith(_NOT_OF_A_ROW):
                raise
            raise PlanError(
                f"aggregate {name!r} = {aggregate.sql()} is of an expression that looks at several rows, or makes several",
                operation="bind",
                stage=stage,
                hint="Aggregate expressions of single rows. What another aggregate, a window function or a generator"
                " gives comes from a stage, or a transform with explode, before this one.",
            ) from error


def _check_values(stage: str, df: DataFrame, name: str, aggregate: DistinctCount) -> None:
    """Refuse values that are equal although their digests differ, or the other way round."""
    with _explained(stage, df, name):
        kinds = [field.dataType for field in df.select(*(f.expr(sql) for sql in aggregate.columns)).schema]
    for sql, kind in zip(aggregate.columns, kinds, strict=True):
        if not has_digests(kind):
            raise PlanError(
                f"aggregate {name!r} counts {sql!r}, a {kind.simpleString()}, whose values cannot be told apart here",
                operation="bind",
                stage=stage,
                hint="Count plain values: the fields of a struct, to_json(...) of what is nested,"
                " collation_key(...) of text with a collation.",
            )


def _check_order(stage: str, df: DataFrame, name: str, aggregate: Collected | Top) -> None:
    """Refuse values that cannot be put in a fixed order, and those that a collation orders otherwise than their bytes."""
    with _explained(stage, df, name):
        kinds = [field.dataType for field in df.select(*(f.expr(sql) for sql in aggregate.written)).schema]
    for sql, kind in zip(aggregate.written, kinds, strict=True):
        unfit = "void" if isinstance(kind, t.NullType) else unfit_for_comparison(kind)
        if unfit is None and sql in aggregate.compared and not is_plain_text(kind):
            unfit = "string with a collation"
        if unfit is not None:
            raise PlanError(
                f"aggregate {name!r} = {aggregate.text()} would put {sql!r} in order, but it is, or holds, a {unfit}",
                operation="bind",
                stage=stage,
                hint="Write map_entries(...) or to_json(...) of a map, collation_key(...) of text with a collation,"
                " cast(null as int) of a null.",
            )


def _bind_one(stage: str, df: DataFrame, name: str, aggregate: Aggregate, ansi: bool) -> BoundAggregate:
    _check_row_wise(stage, df, name, aggregate)
    if isinstance(aggregate, DistinctCount):
        _check_values(stage, df, name, aggregate)
    if isinstance(aggregate, Collected | Top):
        _check_order(stage, df, name, aggregate)
    whole = _typed(stage, df, name, [aggregate.sql()])
    result = t.StructField(name, whole.fields[0].dataType, True)
    sql = partials(aggregate, isinstance(result.dataType, t.DecimalType))
    types = arrow_schema(stage, _typed(stage, df, name, sql)).types
    try:
        bound = accumulator(name, aggregate, types, arrow_schema(stage, whole).types[0], ansi)
    except PlanError as error:
        error.at(stage=stage)
        raise
    return BoundAggregate(tuple(sql), bound, result, aggregate.function, aggregate.expression, aggregate.by)
