"""What a stage is, in parts that can be told apart: where its rows come from, and what it computes of them.

A stage whose parts have changed is another stage, whatever its name: its state counts rows that the new one would count
again, or not at all. Code between the inputs and the operator is not part of it; `flow/code.py` says what that is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.json import Json
from holdfast.flow import nodes
from holdfast.flow.nodes import Stateful
from holdfast.flow.prefixes import Prefix, leaves

if TYPE_CHECKING:
    from holdfast.flow.flow_plan import StageSpec

# The names of the parts that say where rows come from.
READS = ("reads", "left reads", "right reads")


@dataclass(frozen=True)
class Definition:
    """A stage of a flow, to be compared with what the ledger knows under its name."""

    parts: Json
    named: bool = True  # whether the name stays when other stages come and go
    code: Mapping[str, str] = field(default_factory=dict)  # digests, by what the code is called


def definition_of(stage: StageSpec, state: Json | None) -> Definition:
    """A stage as the flow describes it; `state` is what its operator says of the state that it keeps."""
    parts = {**(state or {}), **_reads(stage), **_expressions(stage.operator)}
    return Definition(parts, stage.named, stage.code())


def _reads(stage: StageSpec) -> Json:
    names = READS[:1] if stage.right is None else READS[1:]
    return {name: _inputs(prefix) for name, prefix in zip(names, stage.sides, strict=True)}


def _inputs(prefix: Prefix) -> str:
    """The inputs of one side. Rows are not counted by their order, so that of a union makes no difference."""
    return ", ".join(sorted(origin.id for origin in leaves(prefix)))


def _expressions(operator: Stateful | None) -> Json:
    """The SQL that the state was computed by: its types alone do not tell one sum from another."""
    found: dict[str, str | None] = {}
    match operator:
        case nodes.RunningAggregate() | nodes.WindowAggregate():
            found = {f"aggregate {name}": aggregate.text() for name, aggregate in operator.aggregates}
        case nodes.Substream(labelling=labelling):
            found = {"label": labelling.by, "closed when": labelling.closed_when}
    times = {} if isinstance(operator, nodes.Join) else {"time": nodes.time_of(operator)}
    columns = {name: time.column for name, time in times.items() if time is not None}
    return {name: re.sub(r"\s+", " ", text) for name, text in {**found, **columns}.items() if text}
