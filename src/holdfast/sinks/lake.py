"""A table of a lake: each epoch appended in one commit, which also holds the sink's record.

Delta and Iceberg commit alike: a writer looks at the table, writes data files that nobody sees, and then puts the next
version in place, unless another one is there already. On this rest two rules:

1. Every commit of ours holds the claim, and holds only if no other commit of ours came since the look that it was
   decided on. So whoever opens a table, by putting a new claim there, refuses all older openings: a commit of theirs
   that was decided before the claim conflicts with it, and one decided after it finds the claim of another.
2. Rows and record are one commit. A crash leaves both or neither; what it leaves besides are data files that no
   version of the table names, for the table's own vacuum.

Commits of others are none of ours: after a conflict with one, the table is looked at again and the commit decided anew.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from holdfast.core import crashpoints, limits
from holdfast.core.errors import FencedError, HoldfastError, PlanError, SinkError
from holdfast.core.extras import package_of
from holdfast.core.secrets import Settings, without_secrets
from holdfast.flow.lake import DeltaSink, IcebergSink
from holdfast.sinks import reading
from holdfast.sinks.contract import Sink, SinkRecord, admit, opened_for, other_flow
from holdfast.storage import atomic

T = TypeVar("T")
S = TypeVar("S")


class Conflict(Exception):
    """Somebody has committed since the look that a commit was decided on; it may also be that the commit is there."""


@dataclass(frozen=True)
class Held:
    """What a table says of its sink."""

    flow: str
    start: int  # the first epoch that the table was to be given
    claim: int  # the opening that may publish
    claim_generation: int
    last: SinkRecord | None


@dataclass(frozen=True)
class Look(Generic[T]):
    """A table as it was at one moment."""

    table: T
    held: Held | None  # None in a table that no sink has opened yet


class LakeTable(ABC, Generic[T, S]):
    """What a format must do."""

    settings: Settings = ()

    @property
    @abstractmethod
    def place(self) -> object:
        """The table, as nothing else is called."""

    @abstractmethod
    def look(self) -> Look[T] | None:
        """The table as it is now; None if there is none."""

    @abstractmethod
    def check(self, look: Look[T]) -> None:
        """Raise a SinkError if the table cannot take the rows."""

    @abstractmethod
    def create(self, held: Held) -> None:
        """Make the table, with what it is to say of its sink; Conflict if it is there by now."""

    @abstractmethod
    def stage(self, look: Look[T], segments: Sequence[Path], before: S | None) -> S:
        """Write what can be written before the commit; `before` is what an earlier try has staged."""

    @abstractmethod
    def commit(self, look: Look[T], held: Held, staged: S | None) -> None:
        """Commit what the table is to say, and rows with it; Conflict if another opening has committed since the look."""


@dataclass(frozen=True)
class _Opening:
    claim: int
    flow: str
    branch: int
    generation: int


class LakeSink(Generic[T, S]):
    """Publishes each epoch as one commit of a table."""

    def __init__(self, table: LakeTable[T, S]) -> None:
        self._table = table
        self._opening: _Opening | None = None

    @property
    def place(self) -> object:
        """The table."""
        return self._table.place

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Fence every older opening by a claim of its own, then say what is the last record found there."""
        self._opening = None
        opening = _Opening(secrets.randbits(62), flow, branch, generation)
        with self._explained("open"):
            held = self._claimed(opening, start)
        self._opening = opening
        return held.last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Append the rows of one epoch, once; an epoch without rows moves only the record."""
        opening = opened_for(self._opening, record, self._table)
        filled = [segment for segment in segments if reading.has_rows(segment)]
        with self._explained("publish", record.epoch):
            look = self._admitted(opening, record)
            if look is None:
                return
            crashpoints.reach("sink.before_stage")
            self._append(opening, record, look, filled)
        crashpoints.reach("sink.after_record")

    def close(self) -> None:
        """Let go of the table; the record stays in it."""
        self._opening = None

    # Opening

    def _claimed(self, opening: _Opening, start: int) -> Held:
        for _ in range(limits.LAKE_TRIES_MAX):
            look = self._table.look()
            held = look.held if look else None
            if held is None:
                held = Held(opening.flow, start, opening.claim, opening.generation, None)
            else:
                self._refuse_unless_ours(held, opening)
                held = replace(held, claim=opening.claim, claim_generation=opening.generation)
            try:
                if look is None:
                    self._table.create(held)
                else:
                    self._table.check(look)
                    self._table.commit(look, held, None)
                return held
            except Conflict:
                continue
        raise self._contended("open")

    def _refuse_unless_ours(self, held: Held, opening: _Opening) -> None:
        """Stop before anything is changed, so that a mistake fences nobody."""
        if held.flow != opening.flow:
            raise other_flow(held.flow, opening.flow)
        if held.claim_generation > opening.generation:
            raise self._fenced(held, opening)

    # Publishing

    def _admitted(self, opening: _Opening, record: SinkRecord) -> Look[T] | None:
        """The table as it is now, if the epoch is the next one; None if the epoch is there already."""
        look = self._table.look()
        if look is None or look.held is None:
            raise SinkError(
                f"{self._table} is gone, or what it said of its sink is"
                if look
                else f"{self._table} is gone",
                operation="publish",
                hint="Something outside Holdfast removed or replaced it: restore it.",
            )
        if look.held.claim != opening.claim:
            raise self._fenced(look.held, opening)
        if admit(look.held.last, record, start=look.held.start) == "already":
            return None
        self._table.check(look)
        return look

    def _append(self, opening: _Opening, record: SinkRecord, look: Look[T], segments: Sequence[Path]) -> None:
        staged: S | None = None
        for _ in range(limits.LAKE_TRIES_MAX):
            assert look.held is not None
            staged = self._table.stage(look, segments, staged) if segments else None
            try:
                self._table.commit(look, replace(look.held, last=record), staged)
                crashpoints.reach("sink.after_publish")
                return
            except Conflict:
                again = self._admitted(opening, record)
                if again is None:
                    return
                look = again
        raise self._contended("publish")

    # Errors

    @contextmanager
    def _explained(self, operation: str, epoch: int | None = None) -> Iterator[None]:
        """An error of the format's package, in our words."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            reason = without_secrets(f"{type(error).__name__}: {error}", self._table.settings)
            raise SinkError(
                f"{self._table} cannot be written: {reason}",
                operation=operation,
                epoch=epoch,
                hint=atomic.hint_for(error)
                or "Nothing was lost: what is not published is offered again in the next run.",
            ) from error

    def _fenced(self, by: Held, opening: _Opening) -> FencedError:
        newer = by.claim_generation > opening.generation
        who = f"generation {by.claim_generation}" if newer else "another opening of the same generation"
        told = f", which has published up to epoch {by.last.epoch}" if by.last else ""
        return FencedError(
            f"generation {opening.generation} was fenced in {self._table} by {who}{told}", operation="fence"
        )

    def _contended(self, operation: str) -> SinkError:
        return SinkError(
            f"others committed to {self._table} {limits.LAKE_TRIES_MAX} times while a commit was on its way",
            operation=operation,
            heals=True,
            hint="Nothing was lost: what is not published is offered again in the next run.",
        )


class Rows:
    """The rows of an epoch on their way into a writer, through which an error of ours would pass only as text."""

    def __init__(self, segments: Sequence[Path], schema: pa.Schema, names: Sequence[str]) -> None:
        self._segments = segments
        self._schema = schema
        self._names = list(names)
        self._failure: Exception | None = None

    @contextmanager
    def reader(self) -> Iterator[pa.RecordBatchReader]:
        """The rows, in columns of these names."""
        schema = pa.schema([self._schema.field(name) for name in self._names])
        try:
            yield pa.RecordBatchReader.from_batches(schema, self._batches())
        except Exception as error:
            if self._failure is not None:
                raise self._failure from error
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reading.batches(self._segments, self._schema):
                yield batch.select(self._names)
            # The writer has all rows, and nothing of them is committed.
            crashpoints.reach("sink.after_stage")
        except Exception as error:
            self._failure = error
            raise


def lake_sink(description: DeltaSink | IcebergSink, schema: pa.Schema) -> Sink:
    """The sink that a description asks for."""
    if isinstance(description, DeltaSink):
        with package_of("delta"):
            from holdfast.sinks.delta import Delta
        return LakeSink(Delta(description, schema))
    with package_of("iceberg"):
        from holdfast.sinks.iceberg import Iceberg
    return LakeSink(Iceberg(description, schema))


def lake_rows(description: DeltaSink | IcebergSink) -> pa.Table:
    """What a reader of a table sees; no columns where there is no table."""
    if isinstance(description, DeltaSink):
        from holdfast.sinks.delta import rows_of_delta

        return rows_of_delta(description)
    from holdfast.sinks.iceberg import rows_of_iceberg

    return rows_of_iceberg(description)


def refuse_unstorable(what: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise a PlanError for columns that neither format can hold, or cannot be partitioned by."""
    for column in schema:
        if not _storable(column.type):
            raise PlanError(
                f"{what} cannot store the column {column.name!r}, a {column.type}",
                operation="plan",
                hint="Make it text in a transform before the sink, with cast(... as string).",
            )
    for name in partition_by:
        if name not in schema.names:
            raise PlanError(
                f"{what} has partition_by={list(partition_by)}, but there is no column {name!r}",
                operation="plan",
                hint=f"The columns are {', '.join(schema.names)}.",
            )
        if _unfit_to_partition(schema.field(name).type):
            raise PlanError(
                f"{what} cannot be partitioned by {name!r}, a {schema.field(name).type}",
                operation="plan",
                hint="Partition by a column of few values, such as a date.",
            )
    if schema.names and len(partition_by) == len(schema.names):
        raise PlanError(f"{what} is partitioned by all of its columns", operation="plan")


def local_path(address: str) -> Path | None:
    """Where a file is, if it is on a local disk."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in address else Path(address)


def _storable(kind: pa.DataType) -> bool:
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _storable(kind.value_type)
    if is_.is_map(kind):
        return _storable(kind.key_type) and _storable(kind.item_type)
    if is_.is_struct(kind):
        return kind.num_fields > 0 and all(_storable(kind.field(i).type) for i in range(kind.num_fields))
    return (
        is_.is_signed_integer(kind)
        or is_.is_boolean(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32())
        or (is_.is_decimal128(kind))
        or (is_.is_timestamp(kind) and kind.unit == "us")
        or is_.is_string(kind)
        or is_.is_large_string(kind)
        or is_.is_binary(kind)
        or is_.is_large_binary(kind)
    )


def _unfit_to_partition(kind: pa.DataType) -> bool:
    is_ = pa.types
    return is_.is_nested(kind) or is_.is_floating(kind) or is_.is_binary(kind) or is_.is_large_binary(kind)
