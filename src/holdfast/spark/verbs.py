"""Does the everyday steps of a stream to a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from holdfast.core.errors import PlanError
from holdfast.flow.enrichment import Enrich
from holdfast.flow.prefixes import Input
from holdfast.flow.verbs import Drop, Rename, Select, Verb, Where, WithColumns
from holdfast.spark.enriching import enriched


def applied(verb: Verb, df: DataFrame, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows behind a step; tables are among the inputs."""
    match verb:
        case Where(condition=condition):
            return df.where(condition)
        case Select(expressions=expressions):
            return df.selectExpr(*expressions)
        case WithColumns(columns=columns):
            return df.withColumns({name: f.expr(expression) for name, expression in columns})
        case Drop(columns=columns):
            _check_there("drop", columns, df)
            return df.drop(*columns)
        case Rename(names=names):
            _check_there("rename", [old for old, _ in names], df)
            return df.withColumnsRenamed(dict(names))
        case Enrich(table=table):
            return enriched(verb, df, inputs[Input("table", table).id])


def _check_there(what: str, names: tuple[str, ...] | list[str], df: DataFrame) -> None:
    """Spark does nothing for a name that it does not find; whether it does depends on the session's rules for case."""
    for name in names:
        if len(df.drop(name).columns) == len(df.columns):
            raise PlanError(
                f"{what} names the column {name!r}, which is not there",
                operation="transform",
                hint=f"The columns here are {', '.join(df.columns)}.",
            )
