"""Gives every source of files its schema: the declared one, the one of earlier runs, or one that is inferred now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from holdfast.flow import columns
from holdfast.flow.ddl import columns_of
from holdfast.flow.endpoints import FilesSource, SourceDescription
from holdfast.flow.flow_plan import FlowPlan
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.source_schemas import SourceSchema, record_inferred, recorded
from holdfast.sources.inference import infer

# Tells the schema of a source that nobody has declared or written down.
Infer = Callable[[str, FilesSource], SourceSchema]


def with_schemas(plan: FlowPlan, ledger: Ledger) -> FlowPlan:
    """The flow with the schemas of all its sources; one that is inferred here is written down."""
    with ledger.read() as tx:
        known = recorded(tx)
    return resolved(plan, known, partial(_written_down, ledger))


def _written_down(ledger: Ledger, name: str, description: FilesSource) -> SourceSchema:
    return record_inferred(ledger, name, infer(name, description))


def resolved(plan: FlowPlan, known: Mapping[str, SourceSchema], infer_now: Infer) -> FlowPlan:
    """The flow with the schemas of all its sources; columns that they turn out not to have are an error."""
    sources = {name: _source(name, one, known.get(name), infer_now) for name, one in plan.sources.items()}
    if sources == plan.sources:
        return plan
    found = replace(plan, sources=sources)
    columns.check(found)
    return found


def _source(
    name: str, description: SourceDescription, known: SourceSchema | None, infer_now: Infer
) -> SourceDescription:
    if not isinstance(description, FilesSource):
        return description
    if description.schema is None:
        return replace(description, schema=(known or infer_now(name, description)).ddl)
    if known is not None and known.inferred_from is not None and _same(name, description.schema, known):
        # Spelled as it was inferred, so that plans made before it was written into the flow are plans of the same code.
        return replace(description, schema=known.ddl)
    return description


def _same(name: str, schema: str, known: SourceSchema) -> bool:
    return str(columns_of(f"source {name!r}", schema)) == known.ddl


def declared(plan: FlowPlan) -> dict[str, SourceSchema]:
    """The schemas of the files that a flow reads, each spelled in one way."""
    return {
        name: SourceSchema(str(columns_of(f"source {name!r}", one.schema)))
        for name, one in plan.sources.items()
        if isinstance(one, FilesSource)
    }
