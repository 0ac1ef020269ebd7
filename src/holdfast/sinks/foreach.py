"""A function of the user's as a sink: called once an epoch, and again if the call may not have been the last.

There is no target of ours in which a record could be stored with the effect, so the ledger's cursor, which moves
after the function has returned, is the record. A crash between the two calls the function again, with the same
token: a function that remembers tokens makes it exactly-once, and says so with `idempotent=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from holdfast.core import crashpoints
from holdfast.core.errors import SinkError
from holdfast.sinks import reading
from holdfast.sinks.contract import SinkRecord


class ForeachSink:
    """Hands the rows of each epoch to a function."""

    def __init__(
        self, function: Callable[[pa.Table, int, str], object], name: str, schema: pa.Schema
    ) -> None:
        self._function = function
        self._name = name
        self._schema = schema

    @property
    def place(self) -> None:
        """Nothing that could be anyone else's too."""
        return None

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """The record is what the ledger's cursor says."""
        return SinkRecord(flow, branch, start - 1, 0, generation) if start else None

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Call the function; an epoch without rows is passed over."""
        rows = pa.Table.from_batches(reading.batches(segments, self._schema), self._schema)
        if rows.num_rows == 0:
            return
        crashpoints.reach("sink.before_stage")
        try:
            self._function(rows, record.epoch, self.token(record))
        except Exception as error:
            raise SinkError(
                f"the function of sink {self._name!r} raised {type(error).__name__}: {error}",
                operation="foreach",
                epoch=record.epoch,
                hint="Nothing was lost: the epoch is offered again, with the same token, in the next run.",
            ) from error
        crashpoints.reach("sink.after_publish")

    def token(self, record: SinkRecord) -> str:
        """The same for every call with one epoch's rows, whichever process makes it, and for nothing else."""
        return f"{record.flow}:{self._name}:{record.branch}:{record.epoch}:{record.revision}"

    def close(self) -> None:
        """Nothing is held."""
