"""What can be told of a flow before Spark is started: directories, schemas, the files that are there, targets.

All of it would come up later too, when a session has been started and the flow is bound. Nothing here writes anything, but
for a schema that is inferred. What only Spark can tell, `holdfast explain --check` asks it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, SinkError, StorageError
from holdfast.flow.endpoints import FilesSource, ParquetSink
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.table_sink import TableSink
from holdfast.ledger import inputs
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.location import is_work_directory
from holdfast.ledger.source_schemas import SourceSchema, recorded
from holdfast.ledger.sqlite import is_ledger
from holdfast.runtime.schemas import resolved, with_schemas
from holdfast.sources.files import Files
from holdfast.sources.inference import infer
from holdfast.sources.listing import listed
from holdfast.spark.schemas import schema_without_spark


@dataclass(frozen=True)
class Before:
    """What a work directory knows of the sources of a flow."""

    schemas: Mapping[str, SourceSchema] = field(default_factory=dict)
    known: Mapping[str, set[str]] = field(default_factory=dict)  # the identities of all items
    unread: Mapping[str, Sequence[Item]] = field(
        default_factory=dict
    )  # items that no committed epoch has read


def before(work_dir: Path, plan: FlowPlan) -> Before:
    """What a work directory knows, without changing it; nothing if no flow has run there."""
    if not is_work_directory(work_dir):
        return Before()
    with reading(work_dir) as tx:
        return _before(tx, plan)


def _before(tx: Connection, plan: FlowPlan) -> Before:
    return Before(
        recorded(tx),
        {name: inputs.known_identities(tx, name) for name in plan.sources},
        {name: list(inputs.unread_by_all(tx, name).values()) for name in plan.sources},
    )


def ready(plan: FlowPlan, ledger: Ledger) -> FlowPlan:
    """The flow with its schemas, if nothing speaks against starting Spark for it; else an error with all that does."""
    plan = with_schemas(plan, ledger)
    with ledger.read() as tx:
        known = _before(tx, plan)
    raise_all(problems(plan, known))
    return plan


def check_first_run(plan: FlowPlan, work_dir: Path) -> None:
    """Raise for what speaks against a first run; a schema that is to be inferred is not written down yet."""
    raise_all(problems(resolved(plan, {}, infer), Before(), work_dir))


def raise_all(found: Sequence[HoldfastError]) -> None:
    """Raise the first of some problems, with the others in its hint."""
    if not found:
        return
    first, *others = found
    if others:
        also = " ".join(f"Also: {other.message}." for other in others)
        first.hint = f"{first.hint or ''} {also}".strip()
    raise first


def problems(plan: FlowPlan, known: Before, work_dir: Path | None = None) -> list[HoldfastError]:
    """What would stop a flow whose sources have their schemas; its schemas and columns are in order."""
    found: list[HoldfastError] = []
    for name, description in plan.sources.items():
        if isinstance(description, FilesSource):
            found += _of_files(name, description, known)
    for name, spec in plan.tables.items():
        found += _of_table(name, spec.description)
    found += _of_targets(plan)
    if work_dir is not None and (why := _unwritable(work_dir)):
        found.append(StorageError(f"the work directory {work_dir} cannot be made: {why}", operation="open",
                                  hint="Choose another, or mend the permissions."))  # fmt: skip
    return found


def _of_table(name: str, description: FilesSource) -> Iterator[HoldfastError]:
    """A directory that cannot be listed."""
    try:
        listed(f"table {name!r}", Path(description.path).resolve())
    except HoldfastError as error:
        yield error


def _of_files(name: str, description: FilesSource, known: Before) -> Iterator[HoldfastError]:
    """A directory that cannot be listed; else the first file that cannot be read, and how many others."""
    try:
        stamps = listed(f"source {name!r}", Path(description.path).resolve(), known.known.get(name, set()))
        schema = schema_without_spark(f"source {name!r}", description.schema) if description.schema else None
        if schema is None:
            return
        source = Files(name, description, schema)
    except HoldfastError as error:
        yield error
        return
    if description.format != "parquet":
        return
    items = list(known.unread.get(name, ()))[: limits.EARLY_FILES_MAX]
    faults = source.faults([*stamps[: limits.EARLY_FILES_MAX]], items)
    if len(faults) > 1:
        others = ", ".join(name for name, _ in faults[1:4]) + (", ..." if len(faults) > 4 else "")
        number = "one other file has" if len(faults) == 2 else f"{len(faults) - 1} other files have"
        faults[0][1].message += f" ({number} problems too: {others})"
    yield from (error for _, error in faults[:1])


def _of_targets(plan: FlowPlan) -> Iterator[HoldfastError]:
    for sink in plan.sinks:
        match sink.description:
            case ParquetSink(path=path):
                target, why = path, _unwritable(Path(path))
            case TableSink(url=url) if url.startswith("sqlite"):
                target = str(sa.make_url(url).database)
                why = _unwritable(Path(target).parent) or _is_a_ledger(Path(target))
            case _:
                continue
        if why:
            yield SinkError(
                f"sink {sink.name!r} cannot write to {target}: {why}",
                operation="open",
                stage=sink.stage,
                hint="Name another target, or mend the permissions.",
            )


def _is_a_ledger(file: Path) -> str | None:
    return "it is the ledger of a flow, which nobody else writes to" if is_ledger(file) else None


def _unwritable(directory: Path) -> str | None:
    """Why a directory cannot be made or written to, as far as the nearest one that is there tells."""
    there = next(
        path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path)
    )
    if not there.is_dir():
        return f"{there} is not a directory"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written to"
