"""The shape of a stage's state: which columns are the key, which are the values.

Invariants:
- No column is named twice, and none bears one of the three names that the store itself uses.
- A table that was `conform`ed has exactly the columns and the types asked for, in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.core.errors import StateSchemaError

BUCKET = "_bucket"
HASH = "_h"
LIVE = "_live"
RESERVED = (BUCKET, HASH, LIVE)


@dataclass(frozen=True)
class StateSchema:
    """Key and value columns of a state row; its identity is its bucket and its key."""

    keys: pa.Schema
    values: pa.Schema

    def __post_init__(self) -> None:
        names = [*RESERVED, *self.keys.names, *self.values.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateSchemaError(
                f"state columns named twice: {', '.join(twice)}",
                operation="schema",
                hint=f"Rename them; {', '.join(RESERVED)} are the store's own.",
            )

    @property
    def needles(self) -> pa.Schema:
        """What a lookup takes: bucket, hash and the key columns."""
        return pa.schema([pa.field(BUCKET, pa.int64()), pa.field(HASH, pa.int64()), *_nullable(self.keys)])

    @property
    def changes(self) -> pa.Schema:
        """What an epoch writes: bucket, hash, whether the row lives, the key and the value columns."""
        head = [pa.field(BUCKET, pa.int64()), pa.field(HASH, pa.int64()), pa.field(LIVE, pa.bool_())]
        return pa.schema([*head, *_nullable(self.keys), *self.nullable_values])

    @property
    def nullable_values(self) -> pa.Schema:
        """The value columns as a lookup returns them: null where nothing was found."""
        return pa.schema(_nullable(self.values))

    def agrees_with(self, other: StateSchema) -> bool:
        """Whether both have the same names and types; nullability is a promise, not a layout."""
        return _signature(self) == _signature(other)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Pick `schema`'s columns out of `table`, cast where the types differ, each in one chunk."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise StateSchemaError(f"columns missing: {', '.join(missing)}", operation="conform")
    columns = [single(table.column(field.name), field.type) for field in schema]
    return pa.table(columns, schema=schema)


def single(column: pa.ChunkedArray, kind: pa.DataType | None = None) -> pa.Array:
    """A column as one array of type `kind`, without a copy where it already is one."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if kind is None or array.type == kind:
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StateSchemaError(
            f"a column of type {array.type} does not fit the state's type {kind}: {error}",
            operation="conform",
            hint="State keeps the types it was created with; reset it or cast in the flow.",
        ) from error


def take_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of a table by number, each column in one chunk."""
    indices = pa.array(rows)
    return pa.table([single(column).take(indices) for column in table.columns], schema=table.schema)


def _nullable(schema: pa.Schema) -> list[pa.Field]:
    return [field.with_nullable(True) for field in schema]


def _signature(schema: StateSchema) -> tuple[list[tuple[str, pa.DataType]], ...]:
    return tuple([(field.name, field.type) for field in part] for part in (schema.keys, schema.values))
