"""Cycles of a flow: which stages lie on them, and what must hold for a loop to be one.

Rows that are fed back exert no back-pressure, carry no watermark, and are durable before they are read. So whatever
waits for something else waits along edges that are not feedback, and these have no cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow.nodes import Feedback, Node, time_of
from holdfast.flow.policies import Policy, Resume

if TYPE_CHECKING:
    from holdfast.flow.flow_plan import FlowPlan, StageSpec


@dataclass(frozen=True)
class LoopSpec:
    """What is fed back: the stage whose rows come back, and the columns that were declared for them."""

    name: str
    stage: str
    schema: str


def components(reads: Mapping[str, Collection[str]]) -> tuple[frozenset[str], ...]:
    """Of stages and the stages that each reads, the sets in which each leads to each, in the order of the stages.

    >>> [sorted(found) for found in components({"a": ["b"], "b": ["a"], "c": ["b", "c"], "d": ["c"]})]
    [['a', 'b'], ['c']]
    """
    above = {stage: _above(stage, reads) for stage in reads}
    found = [
        frozenset(other for other in above[stage] if stage in above[other])
        for stage in reads
        if stage in above[stage]
    ]
    return tuple(dict.fromkeys(found))


def closing(loops: Mapping[Feedback, Node | None], loop: Feedback) -> Node:
    """The stream that a loop is closed with."""
    found = loops[loop]
    if found is None:
        raise PlanError(
            f"feedback {loop.name!r} is never closed, so nothing would come back",
            operation="plan",
            hint="Say whose rows come back: loop.close_with(stream).",
        )
    return found


def check(planned: FlowPlan, declared: Sequence[str]) -> None:
    """Raise for the first loop that is none, or that cannot work."""
    for name in declared:
        if name not in {loop.name for loop in planned.loops}:
            raise PlanError(
                f"feedback {name!r} is read by nothing that leads to a sink",
                operation="plan",
                hint="Read it like a source, for example with source.union(loop), or take it out.",
            )
    for stage in planned.stages:
        _check_reader(planned, stage)
    for cycle in planned.cycles:
        _check_entry(planned, cycle)


def objection(planned: FlowPlan, stage: StageSpec, policy: Policy) -> tuple[str, str] | None:
    """Why a stage whose rows are fed back cannot recover by a policy, and what else would help; None if it can."""
    if stage.name not in {loop.stage for loop in planned.loops}:
        return None
    if policy.resume is Resume.SKIP:
        why = (
            "its rows are fed back, so they must be durable before they are read, and it carries them nowhere"
        )
        return why, "feed back the rows of a stage behind it"
    if policy.resume is Resume.DELTA and policy.every > 1:
        why = "its rows are fed back once they have been carried on, and the cycle would wait for more epochs than it brings"
        return why, "say every=1"
    return None


def _above(stage: str, reads: Mapping[str, Collection[str]]) -> set[str]:
    """All that leads to a stage; the stage itself if it lies on a cycle."""
    found: set[str] = set()
    todo = list(reads[stage])
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += reads[other]
    return found


def _check_reader(planned: FlowPlan, stage: StageSpec) -> None:
    for loop in planned.loops:
        if any(origin.name == loop.stage for origin in stage.feedback) and not (
            {stage.name, loop.stage} <= planned.cycle_of(stage.name)
        ):
            raise PlanError(
                f"stage {stage.name!r} reads feedback {loop.name!r}, but nothing of what it makes comes back by it",
                operation="plan",
                stage=stage.name,
                hint="Close the loop with a stream that is made of it; elsewhere read the stream that closes it.",
            )
    if time_of(stage.operator) is not None and stage.feedback.issuperset(stage.inputs):
        raise PlanError(
            f"stage {stage.name!r} goes by event time and reads only what is fed back, which carries no watermark",
            operation="plan",
            stage=stage.name,
            hint="Have it read a stream from outside of the loop too, whose event time it can follow.",
        )


def _check_entry(planned: FlowPlan, cycle: frozenset[str]) -> None:
    if all(
        origin.kind == "channel" and origin.name in cycle
        for stage in planned.stages
        if stage.name in cycle
        for origin in stage.inputs
    ):
        names = [loop.name for loop in planned.loops if loop.stage in cycle]
        raise PlanError(
            f"no source leads into the cycle of feedback {', '.join(map(repr, names))}, so no row ever goes round",
            operation="plan",
            hint="Let rows in, for example with source.union(loop).",
        )
