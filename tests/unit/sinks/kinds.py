"""The sinks that keep a record in their target, and how a test looks into each: one suite runs against them all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from holdfast.sinks import parquet, sqlite, table, table_record
from holdfast.sinks.contract import Sink
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.table import TableSink
from holdfast.storage import atomic
from holdfast.testing.epochs import SCHEMA

TABLE = "values"

POINTS = ("sink.before_stage", "sink.after_stage", "sink.after_publish", "sink.after_record")


@dataclass(frozen=True)
class Kind:
    """A kind of sink."""

    name: str
    sink: Callable[[Path], Sink]
    visible: Callable[[Path], list[int]]  # what a reader of the whole target sees, sorted
    snapshot: Callable[
        [Path], object
    ]  # everything that anyone could read in the target, and what it has published
    leftovers: Callable[[Path], list[str]]  # what only a publish in progress may leave beside the target
    code: frozenset[str]
    copies: bool  # whether rows are copied without being read
    # Where a process may stand still for ever and others still can write.
    stops: tuple[str, ...] = POINTS


def files_visible(target: Path) -> list[int]:
    if not target.exists() or not os.listdir(target):
        return []
    return sorted(ds.dataset(target, partitioning="hive").to_table(columns=["value"])["value"].to_pylist())


def _files(target: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def _staged_files(target: Path) -> list[str]:
    hidden = target.parent / f".{target.name}.holdfast"
    older = sorted(os.listdir(hidden))[:-1] if hidden.exists() else []
    return older + [str(path) for path in hidden.glob("*/staging/*")]


def query(target: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(target)) as connection:
        return connection.execute(sql).fetchall()


def _in_table(target: Path) -> list[int]:
    return [value for (value,) in query(target, f'select value from "{TABLE}" order by value')]


def _rows(target: Path) -> object:
    last = "select target, flow, branch, epoch, revision, generation from holdfast_sinks"
    return query(target, f'select rowid, * from "{TABLE}" order by rowid'), query(target, last)


def _staged_rows(target: Path) -> list[str]:
    hidden = target.parent / f".{target.name}.holdfast"
    return os.listdir(hidden) if hidden.exists() else []


def _parquet(name: str, single_file: bool) -> Kind:
    code = frozenset({parquet.__file__, atomic.__file__})
    return Kind(
        name,
        lambda target: ParquetSink(target, single_file),
        files_visible,
        _files,
        _staged_files,
        code,
        True,
    )


def _table(name: str, key: list[str] | None) -> Kind:
    code = frozenset(module.__file__ for module in (table, table_record, sqlite))
    # A process that stands still inside its transaction holds SQLite's lock.
    stops = tuple(point for point in POINTS if point != "sink.after_publish")
    return Kind(
        name,
        lambda target: TableSink(f"sqlite:///{target}", TABLE, key, SCHEMA),
        _in_table,
        _rows,
        _staged_rows,
        code,
        False,
        stops,
    )


KINDS = {
    kind.name: kind
    for kind in (
        _parquet("directories", single_file=False),
        _parquet("single_file", single_file=True),
        _table("appended", None),
        _table("upserted", ["value"]),
    )
}
