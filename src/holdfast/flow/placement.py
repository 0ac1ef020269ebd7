"""Placement: which stages share a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.nodes import Node

MAIN = "main"  # where stages are that were not placed


@dataclass(frozen=True)
class Group:
    """Stages that run in one worker process, in the order of the flow."""

    name: str
    stages: tuple[str, ...]


def groups_of(
    placed: Sequence[tuple[str, Node | str]], cut: Mapping[Node, str], stages: Sequence[str]
) -> tuple[Group, ...]:
    """The groups that a flow's author asked for, in the order of their first stages."""
    chosen: dict[str, str] = {}
    for group, place in placed:
        stage = _named(place, stages) if isinstance(place, str) else stage_made_by(place, cut, "place")
        if stage in chosen:
            raise PlanError(
                f"stage {stage!r} is placed twice, in {chosen[stage]!r} and in {group!r}",
                operation="plan",
                stage=stage,
                hint="A stage runs in one group: place it once.",
            )
        chosen[stage] = group
    members: dict[str, list[str]] = {}
    for stage in stages:
        members.setdefault(chosen.get(stage, MAIN), []).append(stage)
    return tuple(Group(name, tuple(of_group)) for name, of_group in members.items())


def dealt(groups: Sequence[Group], workers: int) -> tuple[Group, ...]:
    """The stages of a flow that placed none, as neighbours in so many groups of nearly the same size."""
    if workers < 1:
        raise PlanError(f"a flow needs at least one worker, not {workers}", operation="plan")
    if [group.name for group in groups] != [MAIN]:
        raise PlanError(
            f"the flow has placed its stages itself, in {_listed([group.name for group in groups])}",
            operation="plan",
            hint="Leave out --workers, or take flow.place out of the flow.",
        )
    (stages,) = (group.stages for group in groups)
    count = min(workers, len(stages))
    bounds = [len(stages) * i // count for i in range(count + 1)]
    return tuple(
        Group(MAIN if i == 0 else f"{MAIN}-{i + 1}", stages[bounds[i] : bounds[i + 1]]) for i in range(count)
    )


def stage_made_by(node: Node, cut: Mapping[Node, str], call: str) -> str:
    """The stage that a stream is the output of; a step that is only part of stages has none of its own."""
    if node in cut:
        return cut[node]
    takers = [name for taker, name in cut.items() if _takes_in(taker, node)]
    if takers:
        raise PlanError(
            f"{_spelled(node)} is no stage of its own: it is part of {_listed(takers)}",
            operation="plan",
            hint=f"Call {call} on the stream that such a stage makes: behind a window's or a plain agg, a dedup, a join "
            "or a stateful, or on the stream that goes to a sink.",
        )
    raise PlanError(
        f"{_spelled(node)} leads to no stage: no sink reads what is made of it",
        operation="plan",
        hint=f"End its stream with .to(hf.parquet('out/')), or take the {call} away.",
    )


def _named(name: str, stages: Sequence[str]) -> str:
    if name not in stages:
        raise PlanError(
            f"place names a stage {name!r} that the flow does not have",
            operation="plan",
            hint=f"Its stages are {_listed(stages)}; .named() gives a stage a name of your own.",
        )
    return name


def _takes_in(taker: Node, node: Node) -> bool:
    """Whether a node is part of a stage: reached from its end without passing a stage that keeps state."""
    return any(
        above is node or (not isinstance(above, nodes.Stateful) and _takes_in(above, node))
        for above in nodes.upstreams(taker)
    )


def _spelled(node: Node) -> str:
    if isinstance(node, nodes.Source):
        return f"source {node.name!r}"
    return f"this {node.facts['kind'] if isinstance(node, nodes.Stateful) else type(node).__name__.lower()}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
