"""A table of a database: each epoch upserted by key, or appended, in one transaction with the sink's record.

The rows of an epoch are first staged, where only this opening sees them. Then one transaction finds its claim in the
table's record, moves the rows and writes the record. A crash leaves the epoch and its record, or neither; what it
leaves in staging is cleared when the table is opened again.

Null is a key like any other. Of several rows of an epoch with one key, the last in the order of the segments stays.
How rows are staged, matched and moved is the database's business (`database.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Connection

from holdfast.core import crashpoints
from holdfast.core.errors import PlanError, SinkError
from holdfast.core.ids import new_attempt_id
from holdfast.sinks import reading, table_record
from holdfast.sinks.contract import RESET, SinkRecord, admit, opened_for
from holdfast.sinks.database import Column, Database, Epoch
from holdfast.sinks.databases import database_of
from holdfast.sinks.table_record import Claim


@dataclass(frozen=True)
class _Opening:
    claim: Claim
    branch: int

    @property
    def flow(self) -> str:
        return self.claim.flow

    @property
    def generation(self) -> int:
        return self.claim.generation


class TableSink:
    """Publishes each epoch into one table."""

    def __init__(
        self,
        url: str,
        table: str,
        key: Sequence[str] | None,
        schema: pa.Schema,
        spark: SparkSession | None = None,
    ) -> None:
        self._database: Database = database_of(url, table, spark)
        self._name = table
        self._target = self._database.target
        self._key = tuple(key) if key else None
        self._schema = schema
        self._table = self._described()
        self._opening: _Opening | None = None

    def __str__(self) -> str:
        return f"table {self._name!r} of {self._database}"

    @property
    def place(self) -> object:
        """The database and the table in it."""
        return self._database.place

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Fence every older opening of the table, then say what is the last record found there."""
        self._opening = None
        claim = Claim(new_attempt_id(), flow, generation, self._key)
        with self._explained("open"):
            self._database.prepare(claim.id)
            with self._database.opening() as tx:
                table_record.sinks.create(tx, checkfirst=True)
                row = self._taken_over(tx, claim)
                last = self._last(row, claim)
                self._have_table(tx, last)
                table_record.put_claim(tx, self._target, claim, start, row)
            self._database.clear_staging()
        self._opening = _Opening(claim, branch)
        return last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Move the rows of one epoch into the table, once; an epoch without rows moves only the record."""
        opening = opened_for(self._opening, record, self)
        filled = [segment for segment in segments if reading.has_rows(segment)]
        with self._explained("publish", opening.claim, record.epoch):
            with self._database.read() as tx:
                if self._admits(tx, opening.claim, record) == "already":
                    return
            crashpoints.reach("sink.before_stage")
            epoch = Epoch(filled, self._schema, self._table, self._key)
            with self._database.staged(epoch) as staged:
                crashpoints.reach("sink.after_stage")
                with staged.transaction() as tx:
                    if self._admits(tx, opening.claim, record) == "already":
                        return
                    if filled:
                        staged.move(tx)
                    crashpoints.reach("sink.after_publish")
                    table_record.put_record(tx, self._target, record)
        crashpoints.reach("sink.after_record")

    def close(self) -> None:
        """Let go of the target; the record stays in it."""
        self._opening = None
        self._database.close()

    # Opening

    def _described(self) -> sa.Table:
        missing = [name for name in self._key or () if name not in self._schema.names]
        if missing:
            raise PlanError(
                f"hf.table has key={list(self._key or ())}, but there is no column {missing[0]!r}",
                operation="plan",
                hint=f"The columns are {', '.join(self._schema.names)}.",
            )
        columns = [sa.Column(_quoted(field.name), self._declared(field)) for field in self._schema]
        return sa.Table(self._database.named(self._schema.names), sa.MetaData(), *columns)

    def _declared(self, field: pa.Field) -> sa.types.TypeEngine[object]:
        declared = self._database.declared(field.type)
        if declared is None:
            raise PlanError(
                f"hf.table cannot store the column {field.name!r}, a {field.type}",
                operation="plan",
                hint="Make it text in a transform before the sink: to_json(...) for nested values, cast(... as string) "
                "for others.",
            )
        return declared

    def _taken_over(self, tx: Connection, claim: Claim) -> sa.Row | None:
        """The row, locked: an opening that holds it is ended first, if it is one that may be replaced."""
        row = table_record.read(tx, self._target)
        if row is not None:
            table_record.refuse_unless_ours(row, claim, str(self))
            self._database.end_sessions(tx, row.claim)
        return table_record.read(tx, self._target, lock=True)

    def _last(self, row: sa.Row | None, claim: Claim) -> SinkRecord | None:
        if row is None:
            return None
        table_record.refuse_unless_ours(row, claim, str(self))
        return table_record.held(row).last

    def _have_table(self, tx: Connection, last: SinkRecord | None) -> None:
        """Make the table if it is not there, or see that it can take the rows."""
        found = self._database.columns(tx)
        if found:
            self._check_columns(found)
        elif last is not None:
            raise SinkError(
                f"{self} is gone, although it was published up to epoch {last.epoch}",
                operation="open",
                hint=f"Restore it; or start over with {RESET}, which also deletes its row in {table_record.NAME}.",
            )
        else:
            self._table.create(tx)
        if self._key:
            self._database.make_key(tx, self._table, self._key)

    def _check_columns(self, found: Mapping[str, Column]) -> None:
        ours = {self._database.fold(field.name): field for field in self._schema}
        for name, field in ours.items():
            wanted = self._table.c[field.name].type.compile(self._database.dialect)
            if name not in found:
                raise self._misfit(f"has no column {field.name!r}", f"Add it as {wanted}")
            declared = found[name].declared
            if not self._database.keeps(declared, field.type):
                raise self._misfit(
                    f"has column {field.name!r} as {declared}, which would change values of type {field.type}",
                    f"Declare it as {wanted}",
                )
        needed = [name for name, column in found.items() if column.needed and name not in ours]
        if needed:
            raise self._misfit(
                f"needs a value for {', '.join(needed)}, which the stage does not have", "Give it a default"
            )

    def _misfit(self, what: str, remedy: str) -> SinkError:
        return SinkError(f"{self} {what}", operation="open", hint=f"{remedy}, or use another table.")

    # Publishing

    def _admits(self, tx: Connection, claim: Claim, record: SinkRecord) -> str:
        """The fence, and the decision by the table's own record."""
        row = table_record.read(tx, self._target, lock=True)
        if row is None:
            raise SinkError(
                f"the record of {self} is gone from {table_record.NAME}",
                operation="publish",
                hint="Something outside Holdfast removed it: restore the database.",
            )
        found = table_record.held(row)
        if found.claim != claim.id:
            raise table_record.fenced(found, claim, str(self))
        return admit(found.last, record, start=found.start)

    # Errors

    @contextmanager
    def _explained(
        self, operation: str, claim: Claim | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """Tell a fenced opening, whose staging is gone, from a target that cannot be written."""
        try:
            yield
        except self._database.failures as error:
            if claim is not None:
                self._refuse_fenced(claim)
            raise self._database.explained(error, operation, epoch) from error

    def _refuse_fenced(self, claim: Claim) -> None:
        try:
            with self._database.read() as tx:
                row = table_record.read(tx, self._target)
        except self._database.failures:
            return
        if row is not None and row.claim != claim.id:
            raise table_record.fenced(table_record.held(row), claim, str(self))


def _quoted(name: str) -> sa.quoted_name:
    return sa.quoted_name(name, quote=True)
