"""How the rows of an epoch get into a table of PostgreSQL: straight, or through staging.

Rows that are appended are copied straight into the table, inside the transaction: nothing is written twice, which no
number of tasks makes up for, since what is staged is moved by one session. Rows that are upserted are copied into
staging first, and moved from there in the order of their keys, which keeps the pages of the index at hand. Tasks stage
large epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import adbc_driver_manager
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.core.reserved import STAGING
from holdfast.sinks import postgres_types
from holdfast.sinks.database import Column, Epoch, Staged
from holdfast.sinks.postgres_copy import (
    Cast,
    Room,
    cast_of,
    copy_straight,
    copy_to_staging,
    ordinal_of,
    staged_name,
)
from holdfast.sinks.postgres_engine import Session, quoted
from holdfast.sinks.postgres_tasks import Shares, StagingTask, shared_out, stage_by_tasks

_SORT_MEMORY = (
    f"SELECT set_config('work_mem', '{limits.SINK_CACHE_BYTES_MAX // 1024}', true) "
    f"WHERE pg_size_bytes(current_setting('work_mem')) < {limits.SINK_CACHE_BYTES_MAX}"
)


class Target(Protocol):
    """The database, as far as moving rows needs it."""

    def write(self) -> AbstractContextManager[Connection]:
        """One transaction."""
        ...

    def opening(self) -> AbstractContextManager[Connection]:
        """One that makes what all tables of ours share, beside no other."""
        ...

    def columns(self, tx: Connection) -> Mapping[str, Column]:
        """The columns of the table."""
        ...


@contextmanager
def staged_rows(target: Target, room: Room, epoch: Epoch, spark: SparkSession | None) -> Iterator[Staged]:
    """The rows where they can be moved from, for as long as they are needed there."""
    if not epoch.segments or epoch.key is None:
        yield Straight(target, room, epoch)
        return
    with through_staging(target, room, epoch, spark, shared_out(epoch.segments, spark)) as staged:
        yield staged


@contextmanager
def through_staging(
    target: Target, room: Room, epoch: Epoch, spark: SparkSession | None, shares: Shares
) -> Iterator[Staged]:
    """The rows in staging tables, copied by tasks if there are shares for them."""
    _have_schema(target)
    with target.write() as tx:
        room.clear(tx)
        cast = cast_of(target.columns(tx), room, epoch)
    try:
        if spark is not None and shares:
            names = stage_by_tasks(spark, StagingTask(room, cast, shares))
        else:
            names = [room.staging("0")]
            with target.write() as tx:
                copy_to_staging(_session(tx), names[0], list(enumerate(epoch.segments)), cast)
        yield FromStaging(target, room, epoch, cast, names)
    finally:
        # What cannot be dropped now is dropped by the next epoch, or by the next opening.
        with suppress(sa.exc.SQLAlchemyError, adbc_driver_manager.Error), target.write() as tx:
            room.clear(tx)


@dataclass(frozen=True)
class Straight(Staged):
    """Rows that are copied inside the transaction itself."""

    target: Target
    room: Room
    epoch: Epoch

    def transaction(self) -> AbstractContextManager[Connection]:
        """Any."""
        return self.target.write()

    def move(self, tx: Connection) -> None:
        """Copy them into the table."""
        copy_straight(
            _session(tx), self.room, self.epoch, cast_of(self.target.columns(tx), self.room, self.epoch)
        )


@dataclass(frozen=True)
class FromStaging(Staged):
    """Rows in staging tables."""

    target: Target
    room: Room
    epoch: Epoch
    cast: Cast
    names: Sequence[str]

    def transaction(self) -> AbstractContextManager[Connection]:
        """Any."""
        return self.target.write()

    def move(self, tx: Connection) -> None:
        """Insert them; with a key, change the rows that are there."""
        tx.exec_driver_sql(_SORT_MEMORY)
        tx.exec_driver_sql(self.statement())

    def statement(self) -> str:
        """One statement for all of them."""
        names, key = self.epoch.schema.names, self.epoch.key
        columns = ", ".join(map(quoted, names))
        staged = " UNION ALL ".join(f"SELECT * FROM {staged_name(name)}" for name in self.names)
        into = f"INSERT INTO {self.room.table} ({columns})"
        if key is None:
            return f"{into} SELECT {columns} FROM ({staged}) AS staged"
        by = ", ".join(self._compared(name) for name in key)
        changed = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in names if n not in key)
        return (
            f"{into} SELECT DISTINCT ON ({by}) {columns} FROM ({staged}) AS staged "
            f"ORDER BY {by}, {quoted(ordinal_of(self.epoch.schema))} DESC "
            f"ON CONFLICT ({', '.join(map(quoted, key))}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        )

    def _compared(self, name: str) -> str:
        """Which text is equal does not depend on a language, and to sort it by bytes is faster."""
        column = self.cast.columns[self.epoch.schema.get_field_index(name)]
        return f'{quoted(name)} COLLATE "C"' if postgres_types.is_collated(column) else quoted(name)


def _have_schema(target: Target) -> None:
    """Only whoever may create schemas can ask for one "if it does not exist"."""
    asked = f"SELECT to_regnamespace('{STAGING}') IS NULL"
    with target.write() as tx:
        missing = tx.exec_driver_sql(asked).scalar_one()
    if missing:
        with target.opening() as tx:
            tx.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {STAGING}")


def _session(tx: Connection) -> Session:
    session = tx.connection.dbapi_connection
    assert isinstance(session, Session)
    return session
