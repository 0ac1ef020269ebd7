"""Iceberg tables as targets, by the package pyiceberg.

What a table says of its sink is in its properties (`holdfast.flow`, `.start`, `.claim`, `.claim-generation`, `.last`), so
the expiry of snapshots loses nothing of it; snapshots also carry it in their summaries, for people.

A catalog compares only what a commit requires, and no requirement speaks of properties. So every commit of ours, claims
and epochs without rows included, adds a snapshot, and requires that the one before it is still the newest. pyiceberg
would by itself lay a refused append on top of the snapshot that came in between, and a fenced writer with it: it is
told not to, in our copy of the table's settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL, WAREHOUSE
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.properties import property_as_bool

from holdfast.core.errors import SinkError
from holdfast.flow.lake import IcebergSink
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.iceberg_files import DurableFileIO
from holdfast.sinks.lake import Conflict, Held, LakeTable, Look, Rows, local_path, refuse_unstorable

_FLOW, _START, _LAST = "holdfast.flow", "holdfast.start", "holdfast.last"
_CLAIM, _CLAIM_GENERATION = "holdfast.claim", "holdfast.claim-generation"


@dataclass(frozen=True)
class Written:
    """Data files that no snapshot names yet, and the schema and partitioning that they were written for."""

    shape: tuple[int, int]
    files: tuple[DataFile, ...]


class Iceberg(LakeTable[Table, Written]):
    """One Iceberg table."""

    def __init__(self, description: IcebergSink, schema: pa.Schema) -> None:
        refuse_unstorable("hf.iceberg", schema, description.partition_by)
        self.settings = description.settings
        self._description = description
        self._identifier = tuple(description.table.split("."))
        self._schema = pa.schema([column.with_nullable(True) for column in schema])
        self._partition_by = list(description.partition_by)

    def __str__(self) -> str:
        return f"the Iceberg table {self._description.table} of catalog {self._description.catalog!r}"

    @property
    def place(self) -> object:
        """The catalog, by its address or its name, and the table in it."""
        address = dict(self.settings).get("uri", self._description.catalog)
        return address, self._identifier

    @cached_property
    def _catalog(self) -> Catalog:
        return catalog_of(self._description)

    def look(self) -> Look[Table] | None:
        """The table as the catalog has it, with no retries of pyiceberg's own."""
        table = _loaded(self._catalog, self._identifier)
        if table is None:
            return None
        held = self._held(table.properties)
        once = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        return Look(table, held)

    def check(self, look: Look[Table]) -> None:
        """As pyiceberg sees it; partitioned alike, by columns as they are."""
        try:
            _check_pyarrow_schema_compatible(
                look.table.schema(), self._schema, format_version=look.table.format_version
            )
        except ValueError as error:
            raise self._misfit(f"cannot take the columns of the stage: {error}") from error
        spec = look.table.spec()
        if any(not isinstance(field.transform, IdentityTransform) for field in spec.fields):
            raise self._misfit(f"is partitioned by {spec}, and not by columns as they are")
        found = [look.table.schema().find_column_name(field.source_id) for field in spec.fields]
        if found != self._partition_by:
            raise self._misfit(f"is partitioned by {found}, not by {self._partition_by}")

    def create(self, held: Held) -> None:
        """Make the table, and its namespace, and claim it in the same commit."""
        self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        try:
            transaction = self._catalog.create_table_transaction(
                self._identifier, self._schema, properties=_properties(held)
            )
            with transaction.update_spec() as spec:
                for name in self._partition_by:
                    spec.add_identity(name)
            _add_snapshot(transaction, held, ())
            transaction.commit_transaction()
        except (TableAlreadyExistsError, CommitFailedException, CommitStateUnknownException) as error:
            raise Conflict from error

    def stage(self, look: Look[Table], segments: Sequence[Path], before: Written | None) -> Written:
        """Write the data files; once, unless the table has changed its shape since."""
        metadata = look.table.metadata
        shape = (metadata.current_schema_id, metadata.default_spec_id)
        if before is not None and before.shape == shape:
            return before
        with Rows(segments, self._schema, self._schema.names).reader() as reader:
            # pyiceberg splits rows by partition only where it has all of them.
            rows = reader.read_all() if self._partition_by else reader
            return Written(shape, tuple(_dataframe_to_data_files(metadata, rows, look.table.io)))

    def commit(self, look: Look[Table], held: Held, staged: Written | None) -> None:
        """Commit right behind the snapshot that was looked at, or not at all."""
        files = staged.files if staged else ()
        transaction = look.table.transaction()
        transaction.set_properties(_properties(held))
        _add_snapshot(transaction, held, files)
        try:
            transaction.commit_transaction()
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise Conflict from error

    def _held(self, properties: Mapping[str, str]) -> Held | None:
        if _FLOW not in properties:
            return None
        try:
            start, claim, generation = (int(properties[n]) for n in (_START, _CLAIM, _CLAIM_GENERATION))
            last = SinkRecord.from_json(json.loads(properties[_LAST])) if _LAST in properties else None
        except (KeyError, ValueError) as error:
            raise SinkError(
                f"{self} has lost properties, and with them the record of what was published: {error}",
                operation="open",
                hint="Something outside Holdfast changed them: restore the table, or use another one.",
            ) from error
        return Held(properties[_FLOW], start, claim, generation, last)

    def _misfit(self, what: str) -> SinkError:
        return SinkError(
            f"{self} {what}", operation="open", hint="Alter the table, or the flow, or use another table."
        )


def rows_of_iceberg(description: IcebergSink) -> pa.Table:
    """What a reader sees."""
    table = _loaded(catalog_of(description), tuple(description.table.split(".")))
    return table.scan().to_arrow() if table else pa.table({})


def catalog_of(description: IcebergSink) -> Catalog:
    """The catalog, by its settings, or as it is configured for pyiceberg."""
    catalog = load_catalog(description.catalog, **dict(description.settings))
    # Elsewhere a warehouse need not be a place, and a catalog may know better who writes its files.
    if (
        isinstance(catalog, MetastoreCatalog)
        and local_path(catalog.properties.get(WAREHOUSE, "")) is not None
    ):
        catalog.properties.setdefault(PY_IO_IMPL, f"{DurableFileIO.__module__}.{DurableFileIO.__name__}")
    return catalog


def _loaded(catalog: Catalog, identifier: tuple[str, ...]) -> Table | None:
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _properties(held: Held) -> dict[str, str]:
    properties = {
        _FLOW: held.flow,
        _START: str(held.start),
        _CLAIM: str(held.claim),
        _CLAIM_GENERATION: str(held.claim_generation),
    }
    return properties | ({_LAST: json.dumps(held.last.to_json())} if held.last else {})


def _add_snapshot(transaction: Transaction, held: Held, files: Iterable[DataFile]) -> None:
    update = transaction.update_snapshot(snapshot_properties=_properties(held))
    merges = property_as_bool(
        transaction.table_metadata.properties,
        TableProperties.MANIFEST_MERGE_ENABLED,
        TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
    )
    with update.merge_append() if merges else update.fast_append() as snapshot:
        for file in files:
            snapshot.append_data_file(file)
