"""`holdfast explain FLOW`: how a flow is cut into stages, what each does, and what each promises."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.json import Json
from holdfast.flow.explain import explain as explained
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.shared import AsJson, FlowName, console, print_json
from holdfast.runtime.loader import load


def explain(flow: FlowName, as_json: AsJson = False) -> None:
    """Show a flow's sources, stages, channels and sinks, why it is cut where it is, and how it recovers.

    Nothing is run, and no Spark is started. So columns and types are not looked at: `holdfast run` checks them
    before it reads the first row.

    Examples:

    - `holdfast explain orders.py`

    - `holdfast explain flows.orders:flow --json`
    """
    found = explained(plan(load(flow)))
    if as_json:
        print_json(found)
        return
    console().print("\n".join(lines(found)))


def lines(found: Json) -> Iterator[str]:
    """An explanation as an indented tree."""
    yield f"flow {found['flow']}"
    yield from _branch(
        {name: found[name] for name in ("guarantee", "survives", "replica", "trigger", "groups")}, 1
    )
    for kind, title in (("sources", "source"), ("stages", "stage"), ("sinks", "sink")):
        for part in found[kind]:
            yield ""
            yield f"{title} {part['name']}"
            yield from _branch({name: value for name, value in part.items() if name != "name"}, 1)


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
