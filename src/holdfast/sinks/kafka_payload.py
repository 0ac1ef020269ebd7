"""What the rows of an epoch are as messages: encoded by columns, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from holdfast.clients.kafka_messages import HEADERS, Outgoing
from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.flow.kafka import KafkaSink
from holdfast.sinks.json_text import as_json, can_write, rows_as_json

VALUE = "value"

# Rows that are encoded at a time: the texts of a batch must stay below the 2 GiB that an array of them can hold.
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class Encoding:
    """How rows of a schema become messages, checked before anything runs."""

    description: KafkaSink
    schema: pa.Schema

    def __post_init__(self) -> None:
        told = self.description
        for what, name in (("key", told.key), ("headers", told.headers), ("timestamp", told.timestamp)):
            if name is not None and name not in self.schema.names:
                raise PlanError(
                    f"hf.kafka_sink has {what}={name!r}, but there is no such column",
                    operation="plan",
                    hint=f"The columns are {', '.join(self.schema.names)}.",
                )
        if told.timestamp and not kinds.is_timestamp(self.schema.field(told.timestamp).type):
            raise self._misfit(told.timestamp, "be the time of a message", "Cast it to timestamp.")
        if told.headers and not _are_headers(self.schema.field(told.headers).type):
            raise self._misfit(
                told.headers,
                "be headers",
                "Make it a map<string, string or binary>, or array<struct<key, value>>.",
            )
        self._check_payload()

    def messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Outgoing]:
        """The messages of rows, in their order."""
        for batch in batches:
            for piece in _pieces(batch, _PIECE_BYTES):
                yield self._encoded(piece)

    def _encoded(self, rows: pa.RecordBatch) -> Outgoing:
        told = self.description
        if told.payload == "arrow":
            streams = [_stream(part) for part in _pieces(rows, limits.KAFKA_ARROW_BYTES_MAX)]
            return Outgoing(pa.array(streams, pa.binary()))
        return Outgoing(
            rows.column(VALUE) if told.payload == "bytes" else rows_as_json(rows.select(self._columns())),
            None if told.key is None else _key(rows.column(told.key)),
            None if told.timestamp is None else _moments(rows.column(told.timestamp)),
            None if told.headers is None else _headers(rows.column(told.headers)),
        )

    def _columns(self) -> list[str]:
        return [name for name in self.schema.names if name != self.description.headers]

    def _check_payload(self) -> None:
        if self.description.payload == "bytes":
            others = {self.description.key, self.description.headers, self.description.timestamp}
            rest = [name for name in self.schema.names if name not in others and name != VALUE]
            if VALUE not in self.schema.names or rest:
                raise PlanError(
                    f'payload "bytes" takes one column, value, and the stage has {", ".join(self.schema.names)}',
                    operation="plan",
                    hint="Make it in a transform before the sink, and leave the others out.",
                )
            if not _is_text(self.schema.field(VALUE).type):
                raise self._misfit(VALUE, "be a payload", "Cast it to string or binary.")
        elif self.description.payload == "json":
            for name in self._columns():
                if not can_write(self.schema.field(name).type):
                    raise self._misfit(
                        name, "be written as JSON", "Cast it to string in a transform before the sink."
                    )
            key = self.description.key
            if key is not None and kinds.is_nested(self.schema.field(key).type):
                raise self._misfit(
                    key, "be a key", "Make it text in a transform before the sink, with to_json(...)."
                )

    def _misfit(self, name: str, cannot: str, hint: str) -> PlanError:
        kind = self.schema.field(name).type
        return PlanError(f"the column {name!r}, a {kind}, cannot {cannot}", operation="plan", hint=hint)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch in slices of about so many bytes."""
    rows = max(1, batch.num_rows * most // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):  # bounded: slices of a batch
        yield batch.slice(start, rows)


def _stream(rows: pa.RecordBatch) -> memoryview:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as stream:
        stream.write_batch(rows)
    return memoryview(buffer.getvalue())


def _key(values: pa.Array) -> pa.Array:
    """Text and bytes as they are, other values as JSON writes them, without quotes; null stays null."""
    if _is_text(values.type):
        return values
    text = pc.replace_substring(as_json(values), '"', "")
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def _moments(values: pa.Array) -> pa.Array:
    """Milliseconds, which is what Kafka keeps: the rest is cut off."""
    return values.cast(pa.timestamp("ms", values.type.tz), safe=False).cast(pa.int64())


def _headers(values: pa.Array) -> pa.Array:
    if not kinds.is_map(values.type):
        return values.cast(HEADERS)
    entries = pa.StructArray.from_arrays(
        [values.keys.cast(pa.string()), values.items.cast(pa.binary())], ["key", "value"]
    )
    mask = values.is_null() if values.null_count else None
    offsets = pa.array(np.array(values.offsets), pa.int32())  # of its own, as a slice's cannot have a mask
    return pa.ListArray.from_arrays(offsets, entries, mask=mask)


def _is_text(kind: pa.DataType) -> bool:
    fits: Sequence[bool] = (
        kinds.is_string(kind), kinds.is_large_string(kind), kinds.is_binary(kind), kinds.is_large_binary(kind)
    )  # fmt: skip
    return any(fits)


def _are_headers(kind: pa.DataType) -> bool:
    if kinds.is_map(kind):
        return kinds.is_string(kind.key_type) and _is_text(kind.item_type)
    if not kinds.is_list(kind) or not kinds.is_struct(kind.value_type):
        return False
    fields = [kind.value_type.field(i) for i in range(kind.value_type.num_fields)]
    return [field.name for field in fields] == ["key", "value"] and all(_is_text(f.type) for f in fields)
