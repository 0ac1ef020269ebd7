"""What a Delta table is made of, as far as a reader of its files must know: columns, features, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from holdfast.core.json import Json
from holdfast.storage.delta_log import Commit

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Features of which a reader of plain files need know nothing; deletion vectors are refused where there are any.
_READABLE = frozenset(
    {"timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping"}
)
_MAPPING = "delta.columnMapping.mode"


class Unreadable(Exception):
    """A table cannot be read as it is."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True)
class Added:
    """A file that a version has added, or holds; without a file, only the version."""

    version: int
    index: int
    of: int
    add: Json | None
    snapshot: bool = False


@dataclass(frozen=True)
class Shape:
    """The columns of a table."""

    schema: t.StructType
    partition_by: tuple[str, ...]

    @property
    def stored(self) -> t.StructType:
        """The columns that are in the files."""
        return t.StructType([column for column in self.schema if column.name not in self.partition_by])

    def refuse_others(self, other: Shape | None, version: int) -> None:
        """Raise if a version has columns that this shape has not, or has others of their names."""
        if other is None:
            return
        ours = {(column.name, column.dataType) for column in self.schema}
        theirs = [column for column in other.schema if (column.name, column.dataType) not in ours]
        if theirs or other.partition_by != self.partition_by:
            what = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in theirs)
            raise Unreadable(
                f"since version {version} the table has other columns than the flow was bound to: "
                f"{what or f'partitioned by {list(other.partition_by)}'}",
                "Run the flow again: it takes the columns that the table has then. Columns that were renamed, dropped or "
                "given another type need a new work directory.",
            )


def shape_of(table: DeltaTable) -> Shape:
    """The columns of a table, if it can be read at all."""
    metadata, protocol = table.metadata(), table.protocol()
    _refuse_features(protocol.reader_features or (), metadata.configuration)
    return _shape(table.schema().to_json(), metadata.partition_columns)


def shape_in(commit: Commit) -> Shape | None:
    """The columns that a commit gives to its table; None if it leaves them as they are."""
    metadata, protocol = commit.metadata or {}, commit.protocol or {}
    _refuse_features(protocol.get("readerFeatures") or (), metadata.get("configuration") or {})
    if commit.metadata is None:
        return None
    return _shape(metadata["schemaString"], metadata.get("partitionColumns") or ())


def files_of(table: DeltaTable, partition_by: Sequence[str]) -> list[Json]:
    """All files of a version as the log would add them, oldest first."""
    if next(iter(table.deletion_vectors()), None):
        raise Unreadable(
            f"version {table.version()} has deletion vectors, which cannot be read",
            "Rewrite the table without them: REORG TABLE ... APPLY (PURGE).",
        )
    found = pa.table(table.get_add_actions(flatten=True)).sort_by(
        [("modification_time", "ascending"), ("path", "ascending")]
    )
    values = {name: found[f"partition.{name}"].cast(pa.string()).to_pylist() for name in partition_by}
    # One step a file of the table, none a row.
    return [
        {
            "path": path,
            "size": size,
            "stats": json.dumps({"numRecords": rows}),
            "partitionValues": {name: values[name][i] for name in partition_by},
        }
        for i, (path, size, rows) in enumerate(
            zip(*(found[name].to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True)
        )
    ]


def rows_said(add: Json) -> int | None:
    """The rows of a file, if the log tells."""
    try:
        return int(json.loads(add["stats"])["numRecords"])
    except (KeyError, TypeError, ValueError):
        return None


def _shape(schema: str, partition_by: Iterable[str]) -> Shape:
    found = t.StructType.fromJson(json.loads(schema))
    # What a column is called and holds; whether it may be null, and how it is generated, is for writers.
    return Shape(t.StructType([t.StructField(c.name, c.dataType) for c in found]), tuple(partition_by))


def _refuse_features(features: Iterable[str], configuration: Mapping[str, str]) -> None:
    unknown = sorted(set(features) - _READABLE)
    if configuration.get(_MAPPING, "none") != "none":
        unknown.append(f"{_MAPPING}={configuration[_MAPPING]}")
    if unknown:
        raise Unreadable(
            f"the table uses {', '.join(unknown)}, which this source cannot read",
            "Have the table written without it, or copy its rows into one that is.",
        )
