"""Enriching: a stream's rows get the columns of the row of a table that has their key.

It is a join whose table has each key once, so a row of the stream gives at most one row, and rows are treated one by one.
Equality is Spark's in a join: null equals nothing, NaN equals NaN, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.errors import InputError, PlanError
from holdfast.flow.enrichment import Enrich
from holdfast.spark.keys import PREFIX


def enriched(step: Enrich, df: DataFrame, table: DataFrame) -> DataFrame:
    """The rows behind the step."""
    mine, theirs = _types(df), _types(table)
    pairs = [(_named(step, a, mine, "stream"), _named(step, b, theirs, "table")) for a, b in step.on]
    for (a, b), said in zip(pairs, step.on, strict=True):
        _check_types(step, said, mine[a], theirs[b])
    keys = {b: f"{PREFIX}key_{number}" for number, (_, b) in enumerate(pairs)}
    added = {name: f"{step.prefix}{name}" for name in theirs if name not in keys}
    _check_clashes(step, [*added.values()], mine)
    renamed = table.select(*(_column(name).alias(to) for name, to in {**keys, **added}.items()))
    same = [_column(a) == f.col(keys[b]) for a, b in pairs]
    joined = df.join(f.broadcast(renamed), _all(same), step.how)
    return joined.select(*map(_column, df.columns), *map(_column, added.values()))


def check_unique(step: Enrich, table: DataFrame) -> None:
    """Refuse a table that has a key twice: its rows would multiply those of the stream."""
    keys = [_column(theirs) for _, theirs in step.on]
    known = _all([key.isNotNull() for key in keys])
    twice = table.where(known).groupBy(*keys).count().where("count > 1").orderBy(*keys).limit(1)
    found = twice.select(*(key.cast("string") for key in keys), "count").collect()
    if not found:
        return
    *values, times = found[0]
    told = ", ".join(f"{theirs} = {value!r}" for (_, theirs), value in zip(step.on, values, strict=True))
    raise InputError(
        f"table {step.table!r} has {times} rows with the key {told}: a row of the stream would become several",
        operation="enrich",
        hint="Nothing of this epoch was planned. Leave one row for each key in the files, or name further key columns in"
        " on=, and run again.",
    )


def _types(df: DataFrame) -> dict[str, t.DataType]:
    return {field.name: field.dataType for field in df.schema.fields}


def _named(step: Enrich, name: str, columns: Mapping[str, t.DataType], whose: str) -> str:
    """The column as it is spelled; Spark does not mind upper and lower case."""
    if name in columns:
        return name
    near = [column for column in columns if column.lower() == name.lower()]
    if len(near) == 1:
        return near[0]
    raise PlanError(
        f"enrich with {step.table!r} is on {name!r}, which the {whose} does not have",
        operation="enrich",
        hint=f"The columns of the {whose} are {', '.join(columns)}."
        ' Where the two call a key otherwise, write on={"stream_column": "table_column"}.',
    )


def _check_types(step: Enrich, key: tuple[str, str], mine: t.DataType, theirs: t.DataType) -> None:
    if mine == theirs and isinstance(mine, t.AtomicType):
        return
    if mine == theirs:
        raise PlanError(
            f"the key {key[0]!r} of enrich with {step.table!r} is {mine.simpleString()}, which cannot be a key",
            operation="enrich",
            hint="Take columns of plain values for keys.",
        )
    raise PlanError(
        f"the key {key[0]!r} is {mine.simpleString()} in the stream, and {key[1]!r} is {theirs.simpleString()} in table"
        f" {step.table!r}",
        operation="enrich",
        hint=f'Declare the same type in schema= of the table, or cast before: .with_column("{key[0]}",'
        f' "cast({key[0]} as {theirs.simpleString()})").',
    )


def _check_clashes(step: Enrich, added: Iterable[str], mine: Iterable[str]) -> None:
    taken = {name.lower() for name in mine}
    twice = [name for name in added if name.lower() in taken]
    if twice:
        raise PlanError(
            f"the stream has a column {twice[0]!r} already, which table {step.table!r} would add",
            operation="enrich",
            hint=f'Begin the added names otherwise, prefix="{step.table}_"; or .drop or .rename the stream\'s column before;'
            " or leave the table's out of its schema=.",
        )


def _column(name: str) -> Column:
    return f.col(f"`{name.replace('`', '``')}`")


def _all(conditions: list[Column]) -> Column:
    first, *others = conditions
    for other in others:
        first = first & other
    return first
