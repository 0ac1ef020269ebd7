"""Streams whose rows replace rows: a running aggregate, or windows with emit="updates", gives a key in every epoch that changes it.

Such a row is the newest value of its key, not one more row. A step that counts, matches or lets through rows would take
each change for a row, so a flow that has one behind such a stream is refused, unless `.as_rows()` says that this is meant.
A step with a function of the user's is given every change as a row: what that means is for the function to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.nodes import Stateful
from holdfast.flow.prefixes import Read, reads

if TYPE_CHECKING:
    from holdfast.flow.flow_plan import FlowPlan, StageSpec


def check(planned: FlowPlan) -> None:
    """Raise for the first stage that would take changes for rows."""
    updating = stages_of_updates(planned)
    for stage in planned.stages:
        would = _would(stage.operator)
        origin = next((read.input.name for read in _reads(stage) if _carries(read, updating)), None)
        if would is not None and origin is not None:
            raise _refused(stage.name, origin, would)


def stages_of_updates(planned: FlowPlan) -> frozenset[str]:
    """The stages whose rows replace rows: those that make such rows, and those that pass them on."""
    found = {stage.name for stage in planned.stages if _makes_updates(stage.operator)}
    plain = [stage for stage in planned.stages if stage.operator is None]
    while passing := {
        stage.name
        for stage in plain
        if stage.name not in found and any(_carries(read, found) for read in _reads(stage))
    }:
        found |= passing
    return frozenset(found)


def _reads(stage: StageSpec) -> list[Read]:
    return [read for prefix in stage.sides for read in reads(prefix)]


def _carries(read: Read, updating: set[str] | frozenset[str]) -> bool:
    return read.input.kind == "channel" and read.input.name in updating and not read.as_rows


def _makes_updates(operator: Stateful | None) -> bool:
    match operator:
        case nodes.RunningAggregate(at_end=at_end):
            return not at_end
        case nodes.WindowAggregate(window=window):
            return window.emit == "updates"
        case _:
            return False


def _would(operator: Stateful | None) -> str | None:
    """What a step would do with changes; None where it does nothing wrong with them."""
    match operator:
        case nodes.RunningAggregate() | nodes.WindowAggregate():
            return "it would count a key once per change"
        case nodes.Dedup():
            return "it would let a key's first value through and drop its later ones"
        case nodes.Join():
            return "it would pair every change of a key, not its value"
        case nodes.Substream():
            return "it would label every change of a key, not its value"
        case _:
            return None


def _refused(stage: str, origin: str, would: str) -> PlanError:
    return PlanError(
        f"stage {stage!r} reads updates: stage {origin!r} gives a key in every epoch that changes it, with its new value, and "
        f"{would}",
        operation="plan",
        stage=stage,
        hint='Read rows that leave once: windows with emit="final", group_by(..., emit="end"), or the stream before the '
        "aggregate. If every change is meant as a row, say so with .as_rows() on the stream.",
    )
