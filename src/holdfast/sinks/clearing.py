"""Starting over: what a flow has left in the targets of its sinks, and how it goes.

Every kind of sink says what it found, removes it, or says why it cannot: a target that Holdfast cannot empty is refused
before anything is removed anywhere. Removing is the same whether it is done once or was cut off and is done again. Nothing
of another flow is touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.core.errors import SinkError
from holdfast.core.ids import new_attempt_id
from holdfast.flow import endpoints, table_sink
from holdfast.flow.endpoints import SinkDescription
from holdfast.flow.kafka import KafkaSink as KafkaSinkDescription
from holdfast.sinks import table_record
from holdfast.sinks.contract import other_flow
from holdfast.sinks.databases import database_of
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.sqlite import Sqlite
from holdfast.storage import atomic
from holdfast.storage.removal import measured, remove, remove_if_empty


@dataclass(frozen=True)
class Left:
    """What a flow has left in one target."""

    target: str
    files: int = 0
    bytes: int = 0
    rows: int | None = None  # where they can be counted without reading files
    epoch: int | None = None  # the last that was published
    stays: str | None = None  # what clearing does not remove


class Clearing(ABC):
    """Empties one target of what a flow has published to it."""

    @abstractmethod
    def left(self, flow: str) -> Left | None:
        """What there is of the flow; None if there is nothing. A target of another flow is an error."""

    @abstractmethod
    def clear(self, flow: str) -> None:
        """Remove it, the record included."""


def clearing_of(name: str, description: SinkDescription) -> Clearing:
    """How the target of a sink is emptied; a SinkError for one that Holdfast cannot empty."""
    match description:
        case endpoints.ParquetSink(path=path, single_file=single_file):
            return _Parquet(ParquetSink(path, single_file))
        case table_sink.TableSink(url=url, table=table):
            return _Table(url, table)
        case endpoints.DiscardSink() | endpoints.ForeachSink():
            return _Nothing()
        case KafkaSinkDescription():
            return _topic(description)
    kind = description.facts["kind"]
    raise SinkError(
        f"sink {name!r} publishes to a target that cannot be emptied from here ({kind})",
        operation="reset",
        hint="Its record is part of the target: remove the target yourself, or give the sink another one; then reset without"
        " --targets.",
    )


class _Nothing(Clearing):
    """Keeps no record. What a function of the user's did with the rows is not known here."""

    def left(self, flow: str) -> Left | None:
        return None

    def clear(self, flow: str) -> None:
        return


class _Parquet(Clearing):
    """The epochs in the directory, and the record beside it. Files that are not ours stay, and the directory with them."""

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    def left(self, flow: str) -> Left | None:
        last = self._sink.last_of(flow)
        found = measured([*self._sink.epochs(), self._sink.hidden])
        return Left(str(self._sink.path), found.files, found.bytes, epoch=last) if found.files else None

    def clear(self, flow: str) -> None:
        """The epochs first, each in one rename: whatever is cut off here, the record says that there were more."""
        self._sink.last_of(flow)
        for path in self._sink.epochs():
            atomic.make_dirs(self._sink.hidden)
            atomic.rename_without_replacing(path, self._sink.hidden / f"cleared-{new_attempt_id()}")
        remove(self._sink.hidden)
        remove_if_empty(self._sink.path)


class _Table(Clearing):
    """The rows of the table, and its row among the records, in one transaction. The table itself stays."""

    def __init__(self, url: str, table: str) -> None:
        self._database = database_of(url, table, None)
        self._target = self._database.target
        self._table = sa.Table(self._database.named(()), sa.MetaData())
        self._name = f"table {table!r} of {self._database}"

    def left(self, flow: str) -> Left | None:
        with self._opened(self._database.read) as tx:
            row = self._row(tx, flow)
            rows = self._rows(tx) if row is not None else 0
        stays = "the table itself, without rows"
        return None if row is None else Left(self._name, rows=rows, epoch=row.epoch, stays=stays)

    def clear(self, flow: str) -> None:
        with self._opened(self._database.opening) as tx:
            row = self._row(tx, flow)
            if tx is None or row is None:
                return
            self._database.end_sessions(tx, row.claim)
            if self._database.columns(tx):
                tx.execute(sa.delete(self._table))
            tx.execute(sa.delete(table_record.sinks).where(table_record.sinks.c.target == self._target))
            self._database.clear_staging()

    def _rows(self, tx: sa.Connection | None) -> int:
        if tx is None or not self._database.columns(tx):
            return 0
        return int(tx.execute(sa.select(sa.func.count()).select_from(self._table)).scalar_one())

    def _row(self, tx: sa.Connection | None, flow: str) -> sa.Row | None:
        if tx is None:
            return None
        places = tx.get_execution_options().get("schema_translate_map") or {}
        if not sa.inspect(tx).has_table(table_record.NAME, schema=places.get(None)):
            return None
        row = table_record.read(tx, self._target)
        if row is not None and row.flow != flow:
            raise other_flow(row.flow, flow)
        return row

    @contextmanager
    def _opened(
        self, how: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> Iterator[sa.Connection | None]:
        """A connection; none where there is no database, which is not made for this."""
        if isinstance(self._database, Sqlite) and not self._database.path.exists():
            yield None
            return
        try:
            self._database.prepare(new_attempt_id())
            with how() as tx:
                yield tx
        except self._database.failures as error:
            raise self._database.explained(error, "reset", None) from error
        finally:
            self._database.close()


def _topic(description: KafkaSinkDescription) -> Clearing:
    from holdfast.sinks.kafka_clearing import Topic

    return Topic(description)
