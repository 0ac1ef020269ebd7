"""Which stages and sinks of a bound flow see the labels of substreams, and who reads them from whom.

A label travels as the column `substream`. The stage that puts it on rows is its source; a stage that reads labelled rows
and still has the column passes it on, one that has not is the end of the road. Parts of a flow between which no labelled
row passes have trackers of their own: a **scope** is such a part.

Refused, because nobody could tell cheaply when the stage lets go of a label: operators that hold rows of a label back
and give them out later by rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.nodes import Join, OwnOperator, RunningAggregate, Substream, WindowAggregate
from holdfast.flow.ports import OUT
from holdfast.flow.substreams import PUNCTUATION, SUBSTREAM, Labelling
from holdfast.flow.windows import Session
from holdfast.protocols.punctuation import Punctuations
from holdfast.protocols.substreams import Graph, Stage
from holdfast.spark.bind import BoundStage


@dataclass(frozen=True)
class Scope:
    """A part of a flow in which labels travel."""

    name: str  # that of its first source
    tracker: str
    graph: Graph

    @property
    def punctuates(self) -> bool:
        """Whether ends travel in the channels."""
        return self.tracker == PUNCTUATION


@dataclass(frozen=True)
class Labels:
    """All scopes of a flow; none, if it has no substreams."""

    scopes: tuple[Scope, ...] = ()
    carried: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # by stage, its ports with labelled rows

    def scope_of(self, node: str) -> Scope | None:
        """The scope of a stage, or of a sink as the ledger's cursors name it."""
        return next((scope for scope in self.scopes if node in scope.graph.stages), None)

    def ports(self, stage: str) -> frozenset[str]:
        """The ports of a stage whose rows carry labels."""
        return self.carried.get(stage, frozenset())


def labels_of_flow(plan: FlowPlan, stages: Sequence[BoundStage]) -> Labels:
    """Follow the labels of a flow from their sources to where they end."""
    bound = {stage.name: stage for stage in stages}
    passing = _passing(bound)
    reads = {name: _reads(stage, passing) for name, stage in bound.items()}
    for name, found in reads.items():
        if ends_keys(bound[name]) and not found:
            hint = "Label its rows with .substream(...)."
            raise _refused(bound[name], "waits for the end of substreams, and reads none", hint)
    reads = {name: found for name, found in reads.items() if found or _is_source(bound[name])}
    carried = {name: _ports(bound[name], name in passing) for name in reads}
    for name in reads:
        _check(bound[name], OUT in carried[name], bool(reads[name]))
    sinks = {
        f"sink:{sink.name}": (sink.stage,) for sink in plan.sinks if sink.port in carried.get(sink.stage, ())
    }
    nodes = {**reads, **sinks}
    scopes = tuple(_scope(plan, bound, nodes, part) for part in _parts(nodes))
    return Labels(scopes, carried)


def ends_keys(stage: BoundStage) -> bool:
    """Whether a stage holds the keys of a substream until it ends."""
    operator = stage.spec.operator
    return (isinstance(operator, RunningAggregate) and operator.at_end) or (
        isinstance(operator, OwnOperator) and operator.on_end is not None
    )


def labelling_of_stage(stage: BoundStage) -> Labelling | None:
    """How a stage labels; None if it is no source of labels."""
    operator = stage.spec.operator
    return operator.labelling if isinstance(operator, Substream) else None


def _is_source(stage: BoundStage) -> bool:
    return labelling_of_stage(stage) is not None


def _passing(bound: Mapping[str, BoundStage]) -> set[str]:
    """Stages whose output carries labels; in a cycle, what one passes on may come back to it."""
    passing = {name for name, stage in bound.items() if _is_source(stage)}
    while True:
        more = {
            name
            for name, stage in bound.items()
            if name not in passing and SUBSTREAM in stage.output.names and _reads(stage, passing)
        }
        if not more:
            return passing
        passing |= more


def _reads(stage: BoundStage, passing: Iterable[str]) -> tuple[str, ...]:
    inputs = stage.spec.inputs
    return tuple(dict.fromkeys(i.name for i in inputs if i.kind == "channel" and i.name in passing))


def _ports(stage: BoundStage, passes: bool) -> frozenset[str]:
    """What leaves another way has the columns of the input, where a source has not labelled rows yet."""
    aside = [port for port in stage.spec.side_ports if SUBSTREAM in stage.port_schema(port).names]
    return frozenset([*([OUT] if passes else []), *aside])


def _parts(nodes: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Nodes that are connected, whichever way rows pass between them; in the order of the flow."""
    part = {name: name for name in nodes}
    for name, reads in nodes.items():
        for read in reads:
            old, new = part[name], part[read]
            part = {node: new if of == old else of for node, of in part.items()}
    return [[node for node in nodes if part[node] == of] for of in dict.fromkeys(part.values())]


def _scope(
    plan: FlowPlan, bound: Mapping[str, BoundStage], nodes: Mapping[str, Sequence[str]], part: Sequence[str]
) -> Scope:
    graph = Graph({node: Stage(tuple(nodes[node])) for node in part})
    sources = [node for node in part if node in bound and _is_source(bound[node])]
    kinds = {_kind(bound[node]) for node in sources}
    if len(kinds) > 1:
        raise PlanError(
            f"{' and '.join(sources)} label rows that meet, and not alike: none could close what the other has opened",
            operation="plan",
            stage=sources[-1],
            hint="Label them with windows of the same length, or all of them without time.",
        )
    if plan.tracker == PUNCTUATION:
        Punctuations(graph)  # refuses cycles
    return Scope(sources[0], plan.tracker, graph)


def _kind(stage: BoundStage) -> int | None:
    labelling = labelling_of_stage(stage)
    assert labelling is not None
    return labelling.every_us


def _check(stage: BoundStage, passes: bool, reads: bool) -> None:
    """Refuse a stage that could not say which labels it holds."""
    operator = stage.spec.operator
    if _is_source(stage) and reads:
        raise _refused(
            stage, "labels rows that had a label before", "Label rows once, or behind an aggregate."
        )
    if not passes:
        return
    if not _is_source(stage) and stage.output[SUBSTREAM].dataType != t.StringType():
        raise _refused(
            stage, "has labels that are no strings", f"Let the column {SUBSTREAM!r} pass as it is."
        )
    match operator:
        case WindowAggregate(window=window) if isinstance(window.kind, Session):
            held = "sessions"
        case Join(matching=matching) if matching.how != "inner" or SUBSTREAM not in matching.keys:
            held = "rows of a join"
        case OwnOperator(expire_us=expire_us) if expire_us is not None:
            held = "keys that expire"
        case _:
            return
    raise _refused(
        stage,
        f"would give out {held} under labels that it may have let go of",
        f"Drop the column {SUBSTREAM!r} there; of joins, inner ones on {SUBSTREAM!r} will do, of windows, tumbling and"
        " sliding ones.",
    )


def _refused(stage: BoundStage, what: str, hint: str) -> PlanError:
    return PlanError(f"stage {stage.name!r} {what}", operation="plan", stage=stage.name, hint=hint)
