"""Reads back what the sinks of a run hold: what a reader sees, not what the flow believes it wrote."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from holdfast.clients.kafka_messages import read_committed_rows
from holdfast.core import limits
from holdfast.flow.endpoints import DiscardSink, ForeachSink, ParquetSink
from holdfast.flow.flow_plan import FlowPlan, SinkSpec
from holdfast.flow.kafka import KafkaSink
from holdfast.flow.lake import DeltaSink, IcebergSink
from holdfast.flow.nodes import RunningAggregate
from holdfast.flow.own_edges import OwnSink
from holdfast.flow.table_sink import TableSink
from holdfast.sinks.kafka import access_of
from holdfast.sinks.lake import lake_rows
from holdfast.verify.classes import Seen
from holdfast.verify.home import Home
from holdfast.verify.targets import on_server

EPOCH = "epoch"


def seen_in(plan: FlowPlan, home: Home) -> dict[str, Seen]:
    """By sink, what is there to read. A sink whose rows nobody can read back is left out."""
    return {sink.name: found for sink in plan.sinks if (found := _seen(plan, sink, home)) is not None}


def _seen(plan: FlowPlan, sink: SinkSpec, home: Home) -> Seen | None:
    match sink.description:
        case ParquetSink(single_file=single_file):
            rows = _single_files(home.sink(sink.name)) if single_file else _directories(home.sink(sink.name))
            return Seen(sink.name, rows, _revised_by(plan, sink), EPOCH)
        case TableSink(url=url, table=table, key=key) if on_server(url):
            return Seen(sink.name, _server_table(url, table), () if key is None else key)
        case TableSink(table=table, key=key):
            path = home.sink(sink.name).with_name(f"{sink.name}.db")
            return Seen(sink.name, _table(path, table), () if key is None else key)
        case DeltaSink() | IcebergSink() as description:
            return Seen(sink.name, lake_rows(description))
        case ForeachSink(read=read) | OwnSink(read=read) if read is not None:
            os.chdir(home.root)
            rows = read()
            return Seen(sink.name, rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows)))
        case KafkaSink() as description:
            return _messages(plan, sink, description)
        case ForeachSink() | OwnSink() | DiscardSink():
            return None


def _revised_by(plan: FlowPlan, sink: SinkSpec) -> tuple[str, ...]:
    """The columns by which later rows of a stage stand in for earlier ones."""
    (operator,) = (stage.operator for stage in plan.stages if stage.name == sink.stage)
    return operator.keys if isinstance(operator, RunningAggregate) and not operator.at_end else ()


def _directories(path: Path) -> pa.Table:
    partitioning = ds.partitioning(pa.schema([(EPOCH, pa.int64())]), flavor="hive")
    if not path.exists():
        return pa.table({EPOCH: pa.array([], pa.int64())})
    return ds.dataset(path, format="parquet", partitioning=partitioning).to_table()


def _single_files(path: Path) -> pa.Table:
    tables = []
    for file in sorted(path.glob("epoch-*.parquet")):
        table = pq.read_table(file)
        epoch = int(file.stem.removeprefix("epoch-"))
        tables.append(table.append_column(EPOCH, pa.array([epoch] * table.num_rows, pa.int64())))
    return pa.concat_tables(tables) if tables else pa.table({EPOCH: pa.array([], pa.int64())})


def _messages(plan: FlowPlan, sink: SinkSpec, description: KafkaSink) -> Seen:
    """What a reader of committed messages sees; those of one key are in one partition, one after the other."""
    settle_s = limits.KAFKA_OUTAGE_MS_MAX / 1000
    rows = read_committed_rows(access_of(description), description.topic, settle_s)
    revised = description.key is not None and _revised_by(plan, sink) == (description.key,)
    names = ["value", "_key", "_offset"] if revised else ["value", "_key"]
    return Seen(sink.name, rows.select(names), ("_key",) if revised else (), "_offset" if revised else None)


def _server_table(url: str, name: str) -> pa.Table:
    """As the server sends it."""
    from adbc_driver_postgresql import dbapi

    quoted = '"' + name.replace('"', '""') + '"'
    with dbapi.connect(url) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {quoted}")
        return cursor.fetch_arrow_table()


def _table(path: Path, name: str) -> pa.Table:
    """Doubles as doubles, everything else as SQLite spells it: exact, whatever was stored."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        quoted = '"' + name.replace('"', '""') + '"'
        columns = database.execute(f"pragma table_info({quoted})").fetchall()
        doubles = {column for _, column, kind, *_ in columns if kind.upper() in ("REAL", "DOUBLE", "FLOAT")}
        names = [column for _, column, *_ in columns]
        parts = [
            f'"{column}"' if column in doubles else f'quote("{column}")'
            for column in (name.replace('"', '""') for name in names)
        ]
        found = database.execute(f"select {', '.join(parts)} from {quoted}").fetchall() if parts else []
    types = [pa.float64() if column in doubles else pa.string() for column in names]
    return pa.table(
        {
            column: pa.array([row[i] for row in found], kind)
            for i, (column, kind) in enumerate(zip(names, types, strict=True))
        }
    )
