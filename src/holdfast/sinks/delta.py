"""Delta tables as targets, by the package deltalake.

In the table, besides the rows:

    configuration   holdfast.flow, holdfast.start                     put there once, when the table is first opened
    transactions    holdfast.claim, holdfast.claim.generation         by every commit of ours
                    holdfast.branch, .epoch, .revision, .generation   the last record; none until there is one
    commit info     holdfast                                          the same for people, in `history()`

Transaction identifiers are part of a table's state, so neither checkpoints nor the removal of old logs lose them. They
also are what fences: deltalake lays a commit on top of what others have committed since the table was loaded, but never
over a commit with one of its own transaction identifiers, and that check and the commit are one step (the version's
file must be new). So appends and compactions of others pass, and a second opening of ours does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from holdfast.core.errors import PlanError, SinkError
from holdfast.flow.lake import DeltaSink
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.lake import Conflict, Held, LakeTable, Look, Rows, local_path, refuse_unstorable
from holdfast.storage import atomic, delta_log

_FLOW, _START = "holdfast.flow", "holdfast.start"
_CLAIM, _CLAIM_GENERATION = "holdfast.claim", "holdfast.claim.generation"
_RECORD = {name: f"holdfast.{name}" for name in ("branch", "epoch", "revision", "generation")}

# With it, a table may forget transaction identifiers, and with them what was published.
_FORGETS = "delta.setTransactionRetentionDuration"

# Delta's own rule for tables without column mapping: Spark refuses to write a table with such a column.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")


class Delta(LakeTable[DeltaTable, Sequence[Path]]):
    """One Delta table."""

    def __init__(self, description: DeltaSink, schema: pa.Schema) -> None:
        refuse_unstorable("hf.delta", schema, description.partition_by)
        _refuse_names(schema)
        self.settings = description.options
        self._address = delta_log.address(description.path)
        self._root = local_path(self._address)
        self._schema = schema
        self._columns = Schema.from_arrow(pa.schema([column.with_nullable(True) for column in schema]))
        self._partition_by = list(description.partition_by)

    def __str__(self) -> str:
        return f"the Delta table {self._address}"

    @property
    def place(self) -> object:
        """The address."""
        return self._address

    def look(self) -> Look[DeltaTable] | None:
        """The newest version."""
        table = loaded(self._address, dict(self.settings))
        return Look(table, self._held(table)) if table else None

    def check(self, look: Look[DeltaTable]) -> None:
        """The same columns, in any order, partitioned alike."""
        found = {column.name: column.type.to_json() for column in look.table.schema().fields}
        ours = {column.name: column.type.to_json() for column in self._columns.fields}
        if found != ours:
            raise self._misfit(f"has the columns {_listed(found)}, and the stage {_listed(ours)}")
        metadata = look.table.metadata()
        if list(metadata.partition_columns) != self._partition_by:
            raise self._misfit(f"is partitioned by {metadata.partition_columns}, not by {self._partition_by}")
        if _FORGETS in metadata.configuration:
            raise self._misfit(f"has {_FORGETS} set, and may forget with it what was published")

    def create(self, held: Held) -> None:
        """Make the table, and claim it in the same commit."""
        if self._root is not None:
            atomic.make_dirs(self._root)
        try:
            table = DeltaTable.create(
                self._address,
                self._columns,
                partition_by=self._partition_by or None,
                configuration=_configuration(held),
                storage_options=dict(self.settings) or None,
                commit_properties=_properties(held),
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:
            if loaded(self._address, dict(self.settings)) is None:
                raise
            raise Conflict from error
        self._settle(-1, table)

    def stage(
        self, look: Look[DeltaTable], segments: Sequence[Path], before: Sequence[Path] | None
    ) -> Sequence[Path]:
        """Nothing: deltalake writes the data files in the same call as the commit."""
        return segments

    def commit(self, look: Look[DeltaTable], held: Held, staged: Sequence[Path] | None) -> None:
        """Commit on top of the version that was looked at, or of others that no sink of ours made."""
        table, properties, seen = look.table, _properties(held), look.table.version()
        try:
            if look.held is None:
                table.alter.set_table_properties(
                    _configuration(held), raise_if_not_exists=False, commit_properties=properties
                )
            elif staged is None:
                table.create_write_transaction(
                    [], "append", table.schema(), self._partition_by or None, commit_properties=properties
                )
                table.update_incremental()  # to the version that it has just made
            else:
                names = [column.name for column in table.schema().fields]
                with Rows(staged, self._schema, names).reader() as rows:
                    write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise Conflict from error
        self._settle(seen, table)

    def _settle(self, seen: int, table: DeltaTable) -> None:
        """Have the files of the versions since one, among them ours, survive a power cut.

        deltalake says that a commit is done before they would, and nobody relies on the commit before this is done.
        """
        if self._root is None:
            return
        directories = {self._root}
        for version in range(seen + 1, table.version() + 1):
            for file in _files_of(self._root, version):
                atomic.fsync_file(file)
                directories |= {parent for parent in file.parents if parent.is_relative_to(self._root)}
        for directory in directories:
            atomic.fsync_dir(directory)

    def _held(self, table: DeltaTable) -> Held | None:
        configuration = table.metadata().configuration
        if _FLOW not in configuration:
            return None
        flow, start = configuration[_FLOW], int(configuration[_START])
        claim, generation = table.transaction_version(_CLAIM), table.transaction_version(_CLAIM_GENERATION)
        record = {name: table.transaction_version(app) for name, app in _RECORD.items()}
        if claim is None or generation is None:
            raise SinkError(
                f"{self} has lost its transaction identifiers, and with them the record of what was published",
                operation="open",
                hint="Something outside Holdfast removed them: restore the table, or use another one.",
            )
        last = None if None in record.values() else SinkRecord.from_json({"flow": flow, **record})
        return Held(flow, start, claim, generation, last)

    def _misfit(self, what: str) -> SinkError:
        return SinkError(
            f"{self} {what}", operation="open", hint="Alter the table, or the flow, or use another table."
        )


def rows_of_delta(description: DeltaSink) -> pa.Table:
    """What a reader sees."""
    table = loaded(delta_log.address(description.path), dict(description.options))
    return table.to_pyarrow_table() if table else pa.table({})


def loaded(address: str, options: Mapping[str, str]) -> DeltaTable | None:
    """A table as it is now; None if there is none."""
    try:
        return DeltaTable(address, storage_options=dict(options) or None)
    except TableNotFoundError:
        return None


def _files_of(root: Path, version: int) -> Iterator[Path]:
    """What a version is made of, a checkpoint that deltalake made of it included."""
    log = root / delta_log.commit_name(version)
    yield log
    yield from (root / delta_log.file_path(add) for add in delta_log.parsed(log.read_bytes()).adds)
    checkpoint = [log.with_suffix(".checkpoint.parquet"), log.with_name("_last_checkpoint")]
    yield from (file for file in checkpoint if file.exists())


def _configuration(held: Held) -> dict[str, str]:
    return {_FLOW: held.flow, _START: str(held.start)}


def _properties(held: Held) -> CommitProperties:
    numbers = {_CLAIM: held.claim, _CLAIM_GENERATION: held.claim_generation}
    told: Mapping[str, object] = {"claimed_by_generation": held.claim_generation}
    if held.last is not None:
        told = held.last.to_json()
        numbers |= {app: getattr(held.last, name) for name, app in _RECORD.items()}
    return CommitProperties(
        custom_metadata={"holdfast": json.dumps(told)},
        app_transactions=[Transaction(app, number) for app, number in numbers.items()],
    )


def _refuse_names(schema: pa.Schema) -> None:
    for name in schema.names:
        if not _FORBIDDEN.isdisjoint(name) or not name:
            raise PlanError(
                f"a Delta table cannot have the column {name!r}: names there are without spaces and any of ,;{{}}()=",
                operation="plan",
                hint="Rename the column in a transform before the sink.",
            )
    if len({name.lower() for name in schema.names}) != len(schema.names):
        raise PlanError(
            f"a Delta table does not tell upper from lower case, as {', '.join(schema.names)} do",
            operation="plan",
            hint="Rename the column in a transform before the sink.",
        )


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
