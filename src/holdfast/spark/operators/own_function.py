"""A user's function inside a task: what it is given, and what of its answer is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from holdfast.core.code_errors import raised_by
from holdfast.core.errors import FlowError
from holdfast.flow.own import Context, Final, Update

T = TypeVar("T")


@dataclass(frozen=True)
class OwnFunction:
    """A function with the schemas that the flow declares for it."""

    function: Update
    rows: pa.Schema
    state: pa.Schema  # keys first
    output: pa.Schema
    on_end: Final | None = None

    def final(self, state: pa.Table, context: Context) -> pa.Table:
        """What is made of keys whose substream has ended; nobody asks for it where there are none."""
        on_end = self.on_end
        if on_end is None or not state.num_rows:
            return self.output.empty_table()
        return _typed(_called(lambda: on_end(state, context), "on_end"), self.output, "output")

    def __call__(self, rows: pa.Table, state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table]:
        """The new state and the output, with the types declared; nothing else gets past here."""
        answer = _called(
            lambda: self.function(rows.select(self.rows.names).cast(self.rows), state, context), "function"
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise FlowError(
                f"its function returned {type(answer).__name__}, not (state, output)", operation="stateful"
            )
        return _typed(answer[0], self.state, "state"), _typed(answer[1], self.output, "output")


def _called(call: Callable[[], T], what: str) -> T:
    """What a user's code gives; what it raises is theirs to mend."""
    try:
        return call()
    except Exception as error:
        raise raised_by(error, f"its {what}", operation="stateful") from error


def _typed(table: pa.Table | None, schema: pa.Schema, what: str) -> pa.Table:
    if table is None:
        return schema.empty_table()
    if not isinstance(table, pa.Table):
        raise FlowError(
            f"its function returned a {type(table).__name__} as {what}, not a pyarrow Table",
            operation="stateful",
        )
    if sorted(table.column_names) != sorted(schema.names):
        raise FlowError(
            f"the {what} that its function returned has the columns {', '.join(table.column_names)}",
            operation="stateful",
            hint=f"The flow declares {', '.join(schema.names)}.",
        )
    try:
        return table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FlowError(
            f"the {what} that its function returned does not fit its schema: {error}",
            operation="stateful",
            hint=f"The flow declares {', '.join(f'{field.name} {field.type}' for field in schema)}.",
        ) from error
