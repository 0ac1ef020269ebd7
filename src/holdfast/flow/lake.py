"""Describes tables of a lake, Delta and Iceberg: where they are, and what may be shown of that."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.duration import idle_us, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.core.secrets import Settings, without_secrets

ON_CHANGE = ("fail", "skip")
ONE_COMMIT = "the rows of an epoch and the record of it are one commit of the table"

# In a local path, deltalake takes them for something else, or for a part of an address.
_UNFINDABLE = frozenset("%[]|^\\")
_UNSAFE = re.compile(r"allow_unsafe_rename$", re.IGNORECASE)


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table that is appended to."""

    path: str
    partition_by: tuple[str, ...] = ()
    options: Settings = field(default=(), repr=False)

    @property
    def facts(self) -> Json:
        """What `explain` says of it; not the options, which may hold secrets."""
        return {
            "kind": "delta",
            "path": self.path,
            "partition_by": list(self.partition_by),
            "guarantee": "exactly_once",
            "because": ONE_COMMIT,
        }


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table that is appended to."""

    catalog: str  # its name
    table: str
    partition_by: tuple[str, ...] = ()
    settings: Settings = field(default=(), repr=False)

    @property
    def facts(self) -> Json:
        """What `explain` says of it; not the settings of the catalog, which may hold secrets."""
        return {
            "kind": "iceberg",
            "catalog": self.catalog,
            "table": self.table,
            "partition_by": list(self.partition_by),
            "guarantee": "exactly_once",
            "because": ONE_COMMIT,
        }


@dataclass(frozen=True)
class DeltaSource:
    """A Delta table whose files are read once each, in the order of the versions that added them."""

    path: str
    start: str | int = "earliest"
    on_change: str = "fail"
    max_files_per_epoch: int | None = None
    max_rows_per_epoch: int | None = None
    idle_after_us: int | None = None
    options: Settings = field(default=(), repr=False)
    quarantines: ClassVar[bool] = False
    rereadable: ClassVar[bool] = True

    def reading(self) -> str:
        """What decides which rows a file gives."""
        return "delta"

    @property
    def facts(self) -> Json:
        """What `explain` says of it; not the options, which may hold secrets."""
        return {
            "kind": "delta",
            "path": self.path,
            "start": self.start,
            "on_change": self.on_change,
            "max_files_per_epoch": self.max_files_per_epoch,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "idle_after": None if self.idle_after_us is None else spelled(self.idle_after_us),
        }


def delta(
    path: str,
    *,
    partition_by: str | Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Append to a Delta table, which is made if it is not there. Needs `holdfast[delta]`.

    - `path`: a directory, or an address such as `s3://bucket/table`.
    - `partition_by`: a column, or several, by which a new table is partitioned; none by default.
    - `options`: the `storage_options` of the package `deltalake`; they are never shown. None by default.

    Raises `hf.PlanError` if the path cannot be or holds a password, a column is named twice, or an option would let two writers
    both believe that they have committed.
    """
    unsafe = [name for name in options or {} if _UNSAFE.search(name)]
    if unsafe:
        raise PlanError(
            f"with {unsafe[0]} two writers could both believe that they have committed",
            operation="delta",
            hint="Leave it out. On S3 deltalake then uses conditional writes, or a lock in DynamoDB.",
        )
    return DeltaSink(_path("delta", path), _columns("delta", partition_by), _settings(options))


def iceberg(
    catalog: str | Mapping[str, str],
    table: str,
    *,
    partition_by: str | Sequence[str] | None = None,
) -> IcebergSink:
    """Append to an Iceberg table, which is made if it is not there. Needs `holdfast[iceberg]`.

    - `catalog`: the name of one that is configured for `pyiceberg`, or a dict of the settings themselves, such as
      `{"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///warehouse"}`; these are never shown.
    - `table`: `namespace.table`.
    - `partition_by`: a column, or several, by which a new table is partitioned; none by default.

    Raises `hf.PlanError` if `table` names no table of a catalog, or a column is named twice.
    """
    if not all(table.split(".")) or "." not in table:
        raise PlanError(
            f"{table!r} does not name a table of a catalog",
            operation="iceberg",
            hint="Write it as namespace.table.",
        )
    settings = {} if isinstance(catalog, str) else dict(catalog)
    name = catalog if isinstance(catalog, str) else settings.pop("name", "default")
    return IcebergSink(name, table, _columns("iceberg", partition_by), _settings(settings))


def delta_source(
    path: str,
    *,
    start: str | int = "earliest",
    on_change: str = "fail",
    max_files_per_epoch: int | None = None,
    max_rows_per_epoch: int | None = None,
    options: Mapping[str, str] | None = None,
    idle_after: str | None = None,
) -> DeltaSource:
    """Read a Delta table: what it holds, then what is appended to it. Needs `holdfast[delta]`.

    Compaction changes nothing. A file is never split between epochs.

    - `path`: a directory, or an address such as `s3://bucket/table`.
    - `start`: `"earliest"`, the default. `"latest"` leaves out what it holds when the flow first looks, and a number begins with what
      that version added.
    - `on_change`: a version that deletes or changes rows stops the flow with `"fail"`, the default; with `"skip"` it is passed over,
      with all that it added.
    - `max_files_per_epoch`, `max_rows_per_epoch`: the most that an epoch takes; by default what there is, within bounds of memory.
    - `options`: the `storage_options` of the package `deltalake`; they are never shown. None by default.
    - `idle_after`: as for `hf.files`; None by default.

    Raises `hf.PlanError` if the path or a choice cannot be, a bound is below 1, or a duration cannot be read.
    """
    if start not in ("earliest", "latest") and (
        not isinstance(start, int) or isinstance(start, bool) or start < 0
    ):
        raise PlanError(
            f'start={start!r} is neither "earliest" nor "latest" nor the number of a version',
            operation="delta_source",
        )
    if on_change not in ON_CHANGE:
        raise PlanError(
            f"on_change={on_change!r} is not one of {', '.join(ON_CHANGE)}", operation="delta_source"
        )
    for name, bound in (
        ("max_files_per_epoch", max_files_per_epoch),
        ("max_rows_per_epoch", max_rows_per_epoch),
    ):
        if bound is not None and bound < 1:
            raise PlanError(f"{name} must be at least 1, not {bound}", operation="delta_source")
    bounds = max_files_per_epoch, max_rows_per_epoch, idle_us(idle_after)
    return DeltaSource(_path("delta_source", path), start, on_change, *bounds, _settings(options))


def _path(operation: str, path: str) -> str:
    if not path:
        raise PlanError(f"{operation} needs the path of a table", operation=operation)
    if without_secrets(path) != path:
        raise PlanError(
            f"the address {without_secrets(path)} holds a password",
            operation=operation,
            hint="Give it in options, which are never shown.",
        )
    if "://" not in path and not _UNFINDABLE.isdisjoint(os.path.abspath(path)):
        raise PlanError(
            f"deltalake does not find {os.path.abspath(path)}",
            operation=operation,
            hint=f"Use a directory without any of {' '.join(sorted(_UNFINDABLE))} in its path.",
        )
    return path


def _columns(operation: str, names: str | Sequence[str] | None) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names or ())
    if len({name.lower() for name in found}) != len(found):
        raise PlanError(f"partition_by={list(found)} is not a list of different columns", operation=operation)
    return found


def _settings(options: Mapping[str, str] | None) -> Settings:
    return tuple(sorted((str(name), str(value)) for name, value in (options or {}).items()))
