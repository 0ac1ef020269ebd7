"""Tables of PostgreSQL as a target: Holdfast's sink, the ways it could go, and Spark's JDBC writer.

Every side writes into a new table of its own, in a schema that is dropped at the end; the server writes a checkpoint
before it, so that none pays for the pages of another. The plain Spark way to upsert is to append into a staging table,
and one `INSERT ... ON CONFLICT` on a connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import sqlalchemy as sa
from pyspark.sql import SparkSession

from holdfast.bench.data import DataSet
from holdfast.bench.edges_contract import FLOW, Edge, Where, timed
from holdfast.bench.edges_data import ARROW, SEGMENTS, segments_of
from holdfast.bench.report import Bar, Figure, ratio
from holdfast.bench.rounds import Rounds, Side
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.database import Epoch, Staged
from holdfast.sinks.postgres import Postgres
from holdfast.sinks.postgres_staging import Straight, staged_rows, through_staging
from holdfast.sinks.postgres_tasks import dealt
from holdfast.sinks.table import TableSink

APPEND = "postgres_append"
UPSERT = "postgres_upsert"
KEY = ("id",)

BEST = {"batchsize": "10000", "numPartitions": str(SEGMENTS), "reWriteBatchedInserts": "true"}

_COLUMNS = "id bigint, name text, amount numeric(12,2), ts timestamptz, score double precision, note text"
_NAMES = ", ".join(ARROW.names)
_CHANGED = ", ".join(f"{name} = excluded.{name}" for name in ARROW.names if name not in KEY)


def append(where: Where) -> Edge:
    """Rows that are added."""
    server = _Server(_needed(where), None)
    sides: dict[str, Side] = {
        "holdfast": server.holdfast,
        "plain": server.plain,
        "direct": server.direct,
        "staged": server.staged,
        "tasks": server.tasks,
    }
    if where.jdbc:
        sides |= {"spark_jdbc": server.spark_append(BEST), "spark_jdbc_default": server.spark_append({})}
    bars = {f"{APPEND}_vs_spark_jdbc": Bar("at least", 2.0)}
    return Edge(APPEND, sides, _append_figures, bars, frozenset({"spark_jdbc_default"}))


def upsert(where: Where) -> Edge:
    """Rows of which half replace others."""
    server = _Server(_needed(where), KEY)
    sides: dict[str, Side] = {
        "holdfast": server.holdfast,
        "plain": server.plain,
        "staged": server.staged,
        "tasks": server.tasks,
    }
    if where.jdbc:
        sides["spark_jdbc"] = server.spark_upsert
    return Edge(UPSERT, sides, _upsert_figures, {f"{UPSERT}_vs_spark_jdbc": Bar("at least", 1.5)})


def _append_figures(rounds: Rounds) -> list[Figure]:
    found = [
        ratio(f"{APPEND}_over_plain", rounds["holdfast"], rounds["plain"]),
        ratio("staging_over_direct", rounds["staged"], rounds["direct"]),
        ratio("append_tasks_over_direct", rounds["tasks"], rounds["direct"]),
    ]
    for side in ("spark_jdbc", "spark_jdbc_default"):
        if side in rounds:
            found.append(ratio(f"{APPEND}_vs_{side}", rounds[side], rounds["holdfast"][: len(rounds[side])]))
    return found


def _upsert_figures(rounds: Rounds) -> list[Figure]:
    found = [
        ratio(f"{UPSERT}_over_plain", rounds["holdfast"], rounds["plain"]),
        ratio("upsert_tasks_over_one", rounds["tasks"], rounds["staged"]),
    ]
    if "spark_jdbc" in rounds:
        found.append(ratio(f"{UPSERT}_vs_spark_jdbc", rounds["spark_jdbc"], rounds["holdfast"]))
    return found


def _needed(where: Where) -> str:
    assert where.postgres is not None, "checked by whoever chose the edges"
    return where.postgres


# How the rows of an epoch are brought near the table.
_Way = Callable[[Postgres, Epoch], AbstractContextManager[Staged]]


@dataclass(frozen=True)
class _Server:
    """A server, and the key of the tables that are written."""

    url: str
    key: tuple[str, ...] | None

    # Ours

    def holdfast(self, spark: SparkSession, made: DataSet) -> list[float]:
        """The sink as a flow uses it."""
        with self._table() as table:
            sink = TableSink(self.url, table, self.key, ARROW, spark)
            sink.open(FLOW, 0, 1)
            seconds: list[float] = []
            for number, epoch in enumerate(made.files):
                with timed(seconds):
                    sink.publish(SinkRecord(FLOW, 0, number, 0, 1), segments_of(epoch))
            sink.close()
            return seconds

    def plain(self, spark: SparkSession, made: DataSet) -> list[float]:
        """The same path, without record and fence."""
        return self._moved(made, lambda database, epoch: staged_rows(database, database.room(), epoch, spark))

    def direct(self, spark: SparkSession, made: DataSet) -> list[float]:
        """Straight into the table."""
        return self._moved(made, _straight)

    def staged(self, spark: SparkSession, made: DataSet) -> list[float]:
        """Through a staging table, by one connection."""
        return self._moved(
            made, lambda database, epoch: through_staging(database, database.room(), epoch, None, ())
        )

    def tasks(self, spark: SparkSession, made: DataSet) -> list[float]:
        """Through staging tables that tasks fill."""
        return self._moved(
            made,
            lambda database, epoch: through_staging(
                database, database.room(), epoch, spark, dealt(epoch.segments, SEGMENTS)
            ),
        )

    def _moved(self, made: DataSet, way: _Way) -> list[float]:
        with self._table() as name:
            self._run(f"CREATE TABLE {name} ({_COLUMNS})", *self._index(name))
            database = Postgres(self.url, name)
            database.prepare(uuid.uuid4().hex[:22])
            table = sa.Table(name.partition(".")[2], sa.MetaData())
            seconds: list[float] = []
            for files in made.files:
                epoch = Epoch(segments_of(files), ARROW, table, self.key)
                with timed(seconds), way(database, epoch) as staged, staged.transaction() as tx:
                    staged.move(tx)
            database.close()
            return seconds

    # Spark's

    def spark_append(self, options: dict[str, str]) -> Side:
        """Spark's JDBC writer with options of its own and of the driver's."""

        def side(spark: SparkSession, made: DataSet) -> list[float]:
            with self._table() as name:
                self._run(f"CREATE TABLE {name} ({_COLUMNS})")
                seconds: list[float] = []
                for epoch in made.files:
                    with timed(seconds):
                        self._jdbc(spark, made, epoch, name, options)
                return seconds

        return side

    def spark_upsert(self, spark: SparkSession, made: DataSet) -> list[float]:
        """A staging table by JDBC at its best, and one statement."""
        with self._table() as name, self._table() as staging:
            self._run(
                f"CREATE TABLE {name} ({_COLUMNS})",
                *self._index(name),
                f"CREATE UNLOGGED TABLE {staging} ({_COLUMNS})",
            )
            seconds: list[float] = []
            for epoch in made.files:
                with timed(seconds):
                    self._run(f"TRUNCATE {staging}")
                    self._jdbc(spark, made, epoch, staging, BEST)
                    self._run(
                        f"INSERT INTO {name} ({_NAMES}) SELECT {_NAMES} FROM {staging} "
                        f"ON CONFLICT (id) DO UPDATE SET {_CHANGED}"
                    )
            return seconds

    def _jdbc(
        self, spark: SparkSession, made: DataSet, epoch: Path, table: str, options: dict[str, str]
    ) -> None:
        url = sa.make_url(self.url)
        jdbc = f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database}"
        secret = {"user": str(url.username), "password": str(url.password or "")}
        rows = spark.read.schema(made.schema).parquet(str(epoch)).coalesce(SEGMENTS)
        driver = {"driver": "org.postgresql.Driver"}
        rows.write.jdbc(jdbc, table, mode="append", properties={**driver, **secret, **options})

    # Tables

    @contextmanager
    def _table(self) -> Iterator[str]:
        """The name of a table, in a schema of its own that does not outlive it."""
        schema = f"bench_{uuid.uuid4().hex[:12]}"
        self._run(f"CREATE SCHEMA {schema}", "CHECKPOINT")
        try:
            yield f"{schema}.rows"
        finally:
            self._run(f"DROP SCHEMA {schema} CASCADE")

    def _index(self, name: str) -> list[str]:
        return [f"CREATE UNIQUE INDEX ON {name} (id) NULLS NOT DISTINCT"] if self.key else []

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            for statement in statements:
                session.execute(statement)


@contextmanager
def _straight(database: Postgres, epoch: Epoch) -> Iterator[Staged]:
    yield Straight(database, database.room(), epoch)
