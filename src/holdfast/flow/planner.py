"""Cuts a flow into stages: a stateless prefix, at most one stateful operator, an output.

A node becomes a stage of its own when it is stateful or feeds a sink; everything else is folded into
the prefix of the stages that read it, where Spark optimises it together with them.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.endpoints import SinkDescription, SourceDescription
from holdfast.flow.flow import OUT, FlowDescription
from holdfast.flow.nodes import Node, Stateful, Transformation
from holdfast.flow.own import inner_function


@dataclass(frozen=True)
class Input:
    """What a prefix reads: a source's ordinals, or the epochs of another stage's port."""

    kind: str  # "source" or "channel"
    name: str
    port: str = ""

    @property
    def id(self) -> str:
        """The input as the ledger spells it."""
        return f"source:{self.name}" if self.kind == "source" else f"channel:{self.name}.{self.port}"


@dataclass(frozen=True)
class Read:
    """A leaf of a prefix."""

    input: Input


@dataclass(frozen=True)
class Apply:
    """A step of a prefix."""

    child: Prefix
    function: Transformation


@dataclass(frozen=True)
class Concat:
    """Several prefixes, columns matched by name."""

    children: tuple[Prefix, ...]


Prefix = Read | Apply | Concat


@dataclass(frozen=True)
class StageSpec:
    """One stage: what it reads, what it does to the rows, and the state it keeps."""

    name: str
    prefix: Prefix
    operator: Stateful | None
    side_ports: frozenset[str] = frozenset()  # that a sink reads beside `out`

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the prefix, each once, in the order in which they are read."""
        return tuple(dict.fromkeys(_leaves(self.prefix)))

    def reads_as_is(self, origin: Input) -> bool:
        """Whether rows of an input reach the operator as they are, with no code of the user's in between."""
        return _untouched(self.prefix, origin)

    @property
    def reads_each_once(self) -> bool:
        """Whether no input is read twice."""
        return len(_leaves(self.prefix)) == len(self.inputs)

    def fingerprint(self) -> str:
        """Changes when the stage's description or the source text of its functions does."""
        return hashlib.blake2b(_describe_stage(self).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class SinkSpec:
    """A sink, and the stage and port whose rows it takes."""

    name: str
    stage: str
    port: str
    description: SinkDescription

    @property
    def input(self) -> Input:
        """The channel that the sink reads."""
        return Input("channel", self.stage, self.port)


@dataclass(frozen=True)
class FlowPlan:
    """A flow, cut: stages come after all that they read."""

    name: str
    guarantee: str
    survives: str
    sources: dict[str, SourceDescription]
    stages: tuple[StageSpec, ...]
    sinks: tuple[SinkSpec, ...]

    def readers(self, stage: str) -> list[tuple[str, str]]:
        """Who reads which port of a stage: other stages and sinks, as the ledger's cursors name them."""
        channels = [(s.name, i) for s in self.stages for i in s.inputs if i.kind == "channel"]
        stages = [(f"stage:{name}", i.port) for name, i in channels if i.name == stage]
        return stages + [(f"sink:{s.name}", s.port) for s in self.sinks if s.stage == stage]

    def consumers(self, stage: str) -> list[str]:
        """Who reads any port of a stage."""
        return [name for name, _ in self.readers(stage)]


def plan(flow: FlowDescription) -> FlowPlan:
    """Cut a flow into stages."""
    if not flow.sinks:
        raise PlanError(
            f"flow {flow.name!r} has no sink, so nothing would leave it",
            operation="plan",
            hint="End a stream with .to(hf.parquet('out/')).",
        )
    return _Planner(flow).run()


class _Planner:
    """Walks the graph from the sinks upwards."""

    def __init__(self, flow: FlowDescription) -> None:
        self.flow = flow
        self.cut: dict[Node, str] = {}
        self.sources: dict[str, SourceDescription] = {}
        self.stages: list[StageSpec] = []
        self.positions = {node: i for i, node in enumerate(flow.stateful)}

    def run(self) -> FlowPlan:
        sinks = [
            SinkSpec(self._sink_name(node, port, i), self._stage(node), port, description)
            for i, (node, port, description) in enumerate(self.flow.sinks)
        ]
        flow = self.flow
        return FlowPlan(
            flow.name, flow.guarantee, flow.survives, self.sources, tuple(self.stages), tuple(sinks)
        )

    def _sink_name(self, node: Node, port: str, position: int) -> str:
        earlier = sum(1 for other, at, _ in self.flow.sinks[:position] if other is node and at == port)
        return f"{self._name(node)}-{'sink' if port == OUT else port}-{earlier + 1}"

    def _stage(self, node: Node) -> str:
        if node in self.cut:
            return self.cut[node]
        name = self.cut[node] = self._name(node)
        operator = node if isinstance(node, Stateful) else None
        prefix = self._prefix(operator.upstream) if operator else self._inner(node)
        if any(stage.name == name for stage in self.stages):
            raise PlanError(f"there are two stages named {name!r}", operation="plan")
        sides = frozenset(port for other, port, _ in self.flow.sinks if other is node and port != OUT)
        self.stages.append(StageSpec(name, prefix, operator, sides))
        return name

    def _prefix(self, node: Node) -> Prefix:
        """A prefix reads the channel of a node that is a stage, and takes in any other."""
        if node in self.positions:
            return Read(Input("channel", self._stage(node), OUT))
        return self._inner(node)

    def _inner(self, node: Node) -> Prefix:
        match node:
            case nodes.Source(name=name, description=description):
                self.sources[name] = description
                return Read(Input("source", name))
            case nodes.Transform(upstream=upstream, function=function):
                return Apply(self._prefix(upstream), function)
            case nodes.Union(upstreams=upstreams):
                return Concat(tuple(self._prefix(upstream) for upstream in upstreams))
            case _:
                raise PlanError(f"{node!r} cannot be planned", operation="plan")

    def _name(self, node: Node) -> str:
        """The user's name, or one from the position among the stateful steps or the sinks."""
        if node in self.flow.names:
            return self.flow.names[node]
        if node in self.positions:
            kinds = {nodes.Dedup: "dedup", nodes.OwnOperator: "stateful"}
            kind = kinds.get(type(node), "aggregate")
            return f"{kind}-{self.positions[node] + 1}"
        order = list(dict.fromkeys(n for n, _, _ in self.flow.sinks if n not in self.positions))
        return f"rows-{order.index(node) + 1}"


def _leaves(prefix: Prefix) -> list[Input]:
    match prefix:
        case Read(input=origin):
            return [origin]
        case Apply(child=child):
            return _leaves(child)
        case Concat(children=children):
            return [leaf for child in children for leaf in _leaves(child)]


def _untouched(prefix: Prefix, origin: Input) -> bool:
    match prefix:
        case Read():
            return True
        case Apply(child=child):
            return origin not in _leaves(child)
        case Concat(children=children):
            return all(_untouched(child, origin) for child in children)


def _describe_stage(stage: StageSpec) -> str:
    ports = f" {sorted(stage.side_ports)}" if stage.side_ports else ""
    return f"{_describe_prefix(stage.prefix)} | {_describe_operator(stage.operator)}{ports}"


def _describe_operator(operator: Stateful | None) -> str:
    match operator:
        case nodes.RunningAggregate():
            return f"{operator.keys} {operator.aggregates}"
        case nodes.WindowAggregate():
            return f"{operator.keys} {operator.aggregates} {operator.window}"
        case nodes.Dedup():
            return f"{operator.ids} {operator.within_us} {operator.time}"
        case nodes.OwnOperator():
            what = f"{operator.by} {operator.state} {operator.output} {operator.time} {operator.order_by}"
            return f"{what} {operator.expire_us} {_source_text(inner_function(operator.function))}"
        case None:
            return "rows"


def _describe_prefix(prefix: Prefix) -> str:
    match prefix:
        case Read(input=origin):
            return origin.id
        case Apply(child=child, function=function):
            return f"{_describe_prefix(child)} > {_source_text(function)}"
        case Concat(children=children):
            return f"[{', '.join(_describe_prefix(child) for child in children)}]"


def _source_text(function: Callable[..., object]) -> str:
    """The function as written, without indentation or comments on the way; its code where no source is at hand."""
    try:
        return re.sub(r"\s+", " ", inspect.getsource(function)).strip()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return repr((code.co_code, code.co_consts, code.co_names)) if code else repr(type(function))
