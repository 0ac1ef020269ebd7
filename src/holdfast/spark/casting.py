"""Makes the declared types of what a Parquet file holds, without changing a value, or not at all.

Both ways in use it for files that Spark's own reader would refuse, so that both give the same rows.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.core.errors import InputError

_DIGITS_MAX = 38


def converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in another type; ArrowInvalid if a value would not be the same there."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        # Straight on, Arrow asks for as many digits as the largest integer has.
        column = column.cast(pa.decimal128(_DIGITS_MAX, kind.scale))
    made = column if column.type == kind else column.cast(kind)
    if (
        pa.types.is_date(kind)
        and pa.types.is_timestamp(column.type)
        and not made.cast(column.type).equals(column)
    ):
        raise pa.ArrowInvalid("a time of day would be lost")
    return made


def as_declared(rows: pa.Table, declared: pa.Schema) -> pa.Table:
    """Rows with their columns in the declared types."""
    fields = [declared.field(name) for name in rows.column_names]
    return pa.table([converted(rows[field.name], field.type) for field in fields], schema=pa.schema(fields))


def first_unlike(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Scalar | None:
    """The first value of a column that another type does not hold; found by halving."""
    if _holds(column, kind):
        return None
    while len(column) > 1:
        half = len(column) // 2
        left = column.slice(0, half)
        column = column.slice(half) if _holds(left, kind) else left
    return column[0]


def _holds(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        converted(column, kind)
    except pa.ArrowInvalid:
        return False
    return True


def unreadable(path: str, error: Exception) -> InputError:
    """What is said of a file that was found to be in order, and no longer is."""
    return InputError(
        f"{path} cannot be read: {error}",
        operation="read",
        hint="Put the file back as it was, with its modification time.",
    )
