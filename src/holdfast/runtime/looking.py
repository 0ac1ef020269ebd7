"""A flow as it stands here, told without Spark: the schemas of its sources, what speaks against a run, and what is not survived."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.flow.endpoints import FilesSource
from holdfast.flow.flow_plan import FlowPlan
from holdfast.ledger.location import chosen
from holdfast.ledger.source_schemas import SourceSchema
from holdfast.runtime import early
from holdfast.runtime.schemas import resolved
from holdfast.runtime.survival import Shortfall, shortfall
from holdfast.sources.inference import infer


@dataclass(frozen=True)
class Looked:
    """A flow as it stands here: with the schemas of its sources where they can be told, and what speaks against a run."""

    plan: FlowPlan
    schemas_from: dict[str, str]  # by source that declares none, where its schema comes from
    problems: list[HoldfastError]
    shortfall: Shortfall | None = None


def look(plan: FlowPlan, work_dir: Path, ledger: str | None = None) -> Looked:
    """All that can be told without Spark; nothing is written. `ledger` is the URL that a run would be given."""
    told: dict[str, str] = {}
    try:
        missing = shortfall(plan.survives, chosen(work_dir, ledger, plan.name))
        known = early.before(work_dir, plan)
    except HoldfastError as error:
        return Looked(plan, told, [error])

    def inferred(name: str, description: FilesSource) -> SourceSchema:
        found = infer(name, description)
        told[name] = f"inferred now from {_files(found)}; the first run writes it down"
        return found

    for name, description in plan.sources.items():
        if isinstance(description, FilesSource) and description.schema is None and name in known.schemas:
            told[name] = f"as an earlier run inferred it from {_files(known.schemas[name])}"
    try:
        plan = resolved(plan, known.schemas, inferred)
    except HoldfastError as error:
        return Looked(plan, told, [error], missing)
    return Looked(plan, told, early.problems(plan, known, work_dir), missing)


def _files(found: SourceSchema) -> str:
    if found.inferred_from is None:
        return "what the flow declared then"
    return "1 file" if found.inferred_from == 1 else f"{found.inferred_from} files"
