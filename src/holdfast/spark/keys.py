"""Keys in Spark SQL: their hash, the slot and the task it belongs to, and which types can be keys."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import PlanError

PREFIX = "__hf_"
HASH = f"{PREFIX}h"
PART = f"{PREFIX}part"


def quoted(name: str) -> str:
    """A column name as Spark SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def hash_sql(columns: Sequence[str], bits: int = 64) -> str:
    """The 64-bit hash of columns. Spark's hash skips nulls, so their positions are hashed too."""
    parts = ", ".join(f"{quoted(c)}, isnull({quoted(c)})" for c in columns)
    full = f"xxhash64({parts})"
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
        unfit = _unfit(schema[key].dataType)
        if unfit:
            raise PlanError(
                f"column {key!r} cannot be a key: it holds a {unfit}", operation="bind", stage=stage
            )


def _unfit(type_: t.DataType) -> str | None:
    if isinstance(type_, t.MapType | t.VariantType):
        return type_.typeName()
    if isinstance(type_, t.ArrayType):
        return _unfit(type_.elementType)
    if isinstance(type_, t.StructType):
        return next((u for u in (_unfit(field.dataType) for field in type_.fields) if u), None)
    return None
