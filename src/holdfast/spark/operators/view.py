"""How the state of a stage reads to a person: columns by their users' names, aggregates as finished values.

An operator describes its state once, when its types are known; the ledger keeps the description. So state can be
read without the flow's file, without a session, and by a process that has never imported pyspark: nothing here does.

A column of the view is a column of the state as it is, a time that the state holds as microseconds, or an aggregate
that is finished from what is stored of it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.json import Json
from holdfast.protocols.watermark import Timing
from holdfast.spark.operators.accumulators import finished
from holdfast.state.schema import StateSchema, single


@dataclass(frozen=True)
class ViewColumn:
    """One column of a view."""

    name: str
    type: str  # as Spark SQL spells it
    kind: pa.DataType  # the same for Arrow
    stored: tuple[str, ...]  # the state columns that it is made of
    function: str | None = None  # the aggregate that makes a value of them; None: it is what is stored
    less_us: int = 0  # taken off a stored time
    options: Json = field(default_factory=dict)  # of the aggregate

    def of(self, rows: pa.Table) -> pa.Array:
        """The column's values for state rows."""
        stored = [single(rows[name]) for name in self.stored]
        if self.function is not None:
            return finished(self.name, self.function, stored, self.kind, self.options)
        (column,) = stored
        if pa.types.is_timestamp(self.kind) and pa.types.is_int64(column.type):
            return pc.subtract(column, self.less_us).view(self.kind)
        return column

    def to_json(self) -> Json:
        """All but the Arrow type, which goes with those of the other columns."""
        made = {"function": self.function} if self.function else {}
        shifted = {"less_us": self.less_us} if self.less_us else {}
        options = {"options": self.options} if self.options else {}
        body = {"name": self.name, "type": self.type, "stored": list(self.stored)}
        return {**body, **made, **shifted, **options}


@dataclass(frozen=True)
class StateView:
    """The columns of a stage's state as users know them, and when a row of it no longer exists."""

    state: StateSchema
    columns: tuple[ViewColumn, ...]
    keeps_us: int | None  # how long behind the watermark a row stays; None: it stays for ever

    @classmethod
    def of(cls, state: StateSchema, columns: Sequence[ViewColumn], timing: Timing | None) -> StateView:
        """The view of an operator's state."""
        return cls(state, tuple(columns), timing.keeps_us if timing else None)

    @property
    def schema(self) -> pa.Schema:
        """The view's columns for Arrow."""
        return pa.schema([(column.name, column.kind) for column in self.columns])

    def only(self, names: Sequence[str]) -> StateView:
        """The view with these columns alone, in this order."""
        found = {column.name: column for column in self.columns}
        return replace(self, columns=tuple(found[name] for name in names))

    def floor(self, watermark_us: int | None) -> int | None:
        """Buckets below this do not exist once an epoch with that watermark is committed."""
        if self.keeps_us is None:
            return None
        return Timing((), 0, keeps_us=self.keeps_us).floor(watermark_us)

    def table(self, rows: pa.Table) -> pa.Table:
        """State rows as users know them."""
        return pa.table([column.of(rows) for column in self.columns], schema=self.schema)

    def to_json(self) -> Json:
        """As the ledger keeps it; Arrow's own bytes say the types exactly."""
        return {
            "columns": [column.to_json() for column in self.columns],
            "keeps_us": self.keeps_us,
            "arrow": {
                "view": _encoded(self.schema),
                "keys": _encoded(self.state.keys),
                "values": _encoded(self.state.values),
            },
        }

    @classmethod
    def from_json(cls, body: Json) -> StateView:
        """What `to_json` gave."""
        arrow = {name: _decoded(text) for name, text in body["arrow"].items()}
        columns = [
            ViewColumn(
                column["name"],
                column["type"],
                kept.type,
                tuple(column["stored"]),
                column.get("function"),
                column.get("less_us", 0),
                column.get("options", {}),
            )
            for column, kept in zip(body["columns"], arrow["view"], strict=True)
        ]
        return cls(StateSchema(arrow["keys"], arrow["values"]), tuple(columns), body["keeps_us"])


def _encoded(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _decoded(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
