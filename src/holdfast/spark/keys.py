"""Keys in Spark SQL: their hash, the slot and the task it belongs to, and which types can be keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.hashing import can_hash
from holdfast.spark.operators.view import ViewColumn

PREFIX = "__hf_"
HASH = f"{PREFIX}h"
PART = f"{PREFIX}part"


def quoted(name: str) -> str:
    """A column name as Spark SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def hash_sql(columns: Sequence[str], bits: int = 64, seed: int | None = None) -> str:
    """The 64-bit hash of columns. Spark's hash skips nulls, so their positions are hashed too.

    Each column's hash is the seed of the next one's, so a number in front makes another hash function. Of no columns
    it is 0: without keys there is one group.
    """
    if not columns:
        return "0L"
    parts = ", ".join(f"{quoted(c)}, isnull({quoted(c)})" for c in columns)
    full = f"xxhash64({'' if seed is None else f'{seed}L, '}{parts})"
    return full if bits == 64 else f"({full} & {-(1 << (64 - bits))}L)"


def part_sql(boundaries: Sequence[int]) -> str:
    """The task that owns a hash: how many of the inner slot boundaries it has passed."""
    if len(boundaries) <= 2:
        return "0"
    slot = f"(shiftright({HASH}, {limits.SLOT_SHIFT_BITS}) + {limits.SLOTS // 2})"
    return " + ".join(f"cast({slot} >= {b} as int)" for b in boundaries[1:-1])


def even_boundaries(tasks: int) -> list[int]:
    """Slot boundaries that give every task the same share of the hash range."""
    return [limits.SLOTS * i // tasks for i in range(tasks + 1)]


def placed(
    hashed: DataFrame,
    boundaries: Sequence[int],
    aggregate_first: bool,
    group: Sequence[str],
    values: Sequence[Column],
    spread: Callable[[DataFrame], DataFrame] = lambda df: df,
) -> DataFrame:
    """Hashed rows grouped by hash and `group`, in the partition of the task that owns the hash.

    `spread` makes several rows of one; where rows are sent as they are, it does so behind the exchange.
    """
    if aggregate_first:
        return sent(spread(hashed).groupBy(HASH, *group).agg(*values), boundaries)
    return spread(sent(hashed, boundaries)).groupBy(PART, HASH, *group).agg(*values)


def sent(hashed: DataFrame, boundaries: Sequence[int]) -> DataFrame:
    """Rows in the partition of the task that owns their hash, whatever the optimiser knows of it.

    Where keys are constants, so is the task, and Spark would leave the exchange out, or put another behind it. It does
    not see through a lambda, and that costs no more than the exchange's noise.
    """
    part = f.expr(f"transform(array(cast({part_sql(boundaries)} as int)), part -> part)[0]")
    return hashed.withColumn(PART, part).repartitionById(len(boundaries) - 1, f.col(PART))


@dataclass(frozen=True)
class BoundKeys:
    """The key columns of a stage with their types; the state calls them k0, k1, ..."""

    names: tuple[str, ...]
    fields: tuple[t.StructField, ...]
    stored: pa.Schema

    @classmethod
    def of(cls, stage: str, schema: t.StructType, names: Sequence[str]) -> BoundKeys:
        """Check that columns can be keys, and take their types."""
        check_keys(stage, schema, names)
        fields = [t.StructField(name, schema[name].dataType, True) for name in names]
        renamed = t.StructType([t.StructField(f"k{i}", k.dataType, True) for i, k in enumerate(fields)])
        return cls(tuple(names), tuple(fields), arrow_schema(stage, renamed))

    def aggregated_first(self, chosen: bool) -> bool:
        """Whether to aggregate before the exchange: where the plan chose so, and without keys, when all rows meet."""
        return chosen or not self.names

    @property
    def quoted(self) -> list[str]:
        """The columns as Spark SQL takes them."""
        return [quoted(name) for name in self.names]

    @property
    def renamed(self) -> list[Column]:
        """The columns under the names that the state gives them."""
        return [f.col(name).alias(f"k{i}") for i, name in enumerate(self.quoted)]

    @property
    def hashable(self) -> bool:
        """Whether a task can hash and compare them as Spark does: floats would have to be normalised first."""
        inexact = (t.FloatType, t.DoubleType)
        return all(can_hash(k.dataType) and not isinstance(k.dataType, inexact) for k in self.fields)

    @property
    def view(self) -> list[ViewColumn]:
        """The columns under their users' names."""
        named = zip(self.fields, self.stored, strict=True)
        return [ViewColumn(k.name, k.dataType.simpleString(), kept.type, (kept.name,)) for k, kept in named]

    @property
    def description(self) -> str:
        """Names and types."""
        return ", ".join(f"{k.name} {k.dataType.simpleString()}" for k in self.fields)


def check_keys(stage: str, schema: t.StructType, keys: Sequence[str]) -> None:
    """Refuse unknown columns, and types that Spark itself cannot compare."""
    for key in keys:
        if key not in schema.names:
            raise PlanError(
                f"there is no column {key!r} to group by",
                operation="bind",
                stage=stage,
                hint=f"The columns are {', '.join(schema.names)}.",
            )
        unfit = unfit_for_comparison(schema[key].dataType)
        if unfit:
            raise PlanError(
                f"column {key!r} cannot be a key: it holds a {unfit}", operation="bind", stage=stage
            )


def unfit_for_comparison(type_: t.DataType) -> str | None:
    """The part of a type that Spark cannot compare, None if it can compare all of it."""
    if isinstance(type_, t.MapType | t.VariantType):
        return type_.typeName()
    if isinstance(type_, t.ArrayType):
        return unfit_for_comparison(type_.elementType)
    if isinstance(type_, t.StructType):
        return next((u for u in (unfit_for_comparison(field.dataType) for field in type_.fields) if u), None)
    return None


def has_digests(type_: t.DataType) -> bool:
    """Whether two values of a type are equal just when their digests are: Spark's hash skips the nulls inside a value."""
    nested = isinstance(type_, t.ArrayType | t.StructType | t.MapType | t.VariantType)
    return not nested and is_plain_text(type_)


def is_plain_text(type_: t.DataType) -> bool:
    """Whether text in a type, however deep, is compared by its bytes: it has no collation."""
    if isinstance(type_, t.ArrayType):
        return is_plain_text(type_.elementType)
    if isinstance(type_, t.StructType):
        return all(is_plain_text(field.dataType) for field in type_.fields)
    return not isinstance(type_, t.StringType) or type_ == t.StringType()
