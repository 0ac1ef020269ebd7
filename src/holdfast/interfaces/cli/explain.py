"""`holdfast explain FLOW`: how a flow is cut into stages, what each does, and what each promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.json import Json
from holdfast.flow import columns
from holdfast.flow.explain import explain as explained
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.shared import AsJson, FlowName, FlowWorkDir, console, print_json
from holdfast.ledger.location import LEDGER_VARIABLE
from holdfast.runtime import loader


def explain(
    flow: FlowName,
    check: Annotated[
        bool,
        typer.Option("--check", help="Start a local Spark, and show the columns and types of every stage."),
    ] = False,
    work_dir: FlowWorkDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a flow's sources, stages, channels and sinks, why it is cut where it is, and how it recovers.

    Nothing is run, and no Spark is started. What can be told without it is: schemas and columns, directories that are
    missing, files that cannot be read as declared, targets that cannot be written to. `--check` binds the flow as a run
    would, which takes as long as Spark does to start, and ends with status 1 if it cannot be.

    Examples:

    - `holdfast explain orders.py`

    - `holdfast explain --check orders.py`

    - `holdfast explain flows.orders:flow --json`
    """
    from holdfast.runtime.early import raise_all
    from holdfast.runtime.looking import look

    loaded = loader.load(flow)
    planned = plan(loaded)
    columns.check(planned)
    looked = look(planned, work_dir or Path("work") / planned.name, os.environ.get(LEDGER_VARIABLE))
    found = explained(looked.plan)
    found["sources"] = [
        {**one, "schema_from": looked.schemas_from.get(one["name"])} for one in found["sources"]
    ]
    found["problems"] = [{"message": one.message, "hint": one.hint} for one in looked.problems]
    missing = looked.shortfall
    found["notices"] = [{"message": missing.message, "hint": missing.hint}] if missing else []
    if check:
        from holdfast.runtime.checking import columns_by_stage

        raise_all(looked.problems)
        loader.ship_module_by_value(loaded)
        by_stage = columns_by_stage(looked.plan)
        found["stages"] = [{**stage, "columns": by_stage[stage["name"]]} for stage in found["stages"]]
    if as_json:
        print_json(found)
        return
    console().print("\n".join(lines(found)))
    if not check:
        console().print(f"\nColumns and types of every stage: holdfast explain --check {flow}")


def lines(found: Json) -> Iterator[str]:
    """An explanation as an indented tree."""
    yield f"flow {found['flow']}"
    yield from _branch(
        {name: found[name] for name in ("guarantee", "survives", "replica", "trigger", "groups")}, 1
    )
    for kind, title in (("sources", "source"), ("tables", "table"), ("stages", "stage"), ("sinks", "sink")):
        for part in found[kind]:
            yield ""
            yield f"{title} {part['name']}"
            yield from _branch(
                {name: value for name, value in part.items() if name not in ("name", "columns")}, 1
            )
            for column in part.get("columns", ()):
                yield f"  column: {column['name']} {column['type']}"
    for kind in ("notice", "problem"):
        for one in found.get(f"{kind}s", ()):
            yield ""
            yield f"{kind}: {one['message']}"
            yield f"  hint: {one['hint']}"


def _branch(facts: Json, depth: int) -> Iterator[str]:
    """A line a fact; facts that have facts of their own come below their kind or name. What is not set is left out."""
    for name, value in facts.items():
        title = f"{'  ' * depth}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            inner = dict(value)
            head = inner.pop("kind", "") or inner.pop("policy", "") or inner.pop("mode", "")
            head = head or inner.pop("column", "")
            below = list(_branch(inner, depth + 1))
            yield f"{title}: {head or 'none'}" if head or not below else title
            yield from below
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for part in value:
                inner = dict(part)
                yield f"{title.removesuffix('s')}: {inner.pop('name')}"
                yield from _branch(inner, depth + 1)
        elif isinstance(value, bool):
            yield f"{title}: {'yes' if value else 'no'}"
        elif value not in (None, [], 0):
            yield f"{title}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
