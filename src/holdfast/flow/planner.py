"""Cuts a flow into stages: a stateless prefix, at most one stateful operator, an output.

A node becomes a stage of its own when it is stateful, feeds a sink or is fed back; everything else is folded into
the prefix of the stages that read it, where Spark optimises it together with them.
"""

from __future__ import annotations

from holdfast.core.errors import PlanError
from holdfast.flow import cycles, guarantee, nodes, updates
from holdfast.flow.cycles import LoopSpec
from holdfast.flow.endpoints import DiscardSink, SourceDescription
from holdfast.flow.flow import FlowDescription
from holdfast.flow.flow_plan import FlowPlan, SinkSpec, StageSpec
from holdfast.flow.nodes import Node, Stateful
from holdfast.flow.on_stage import OLDEST
from holdfast.flow.placement import groups_of, stage_made_by
from holdfast.flow.policies import Policy
from holdfast.flow.ports import OUT, QUARANTINE
from holdfast.flow.prefixes import (
    Apply,
    Concat,
    Input,
    Prefix,
    Read,
    taken_as_rows,
)


def plan(flow: FlowDescription) -> FlowPlan:
    """Cut a flow into stages."""
    if not flow.sinks:
        raise PlanError(
            f"flow {flow.name!r} has no sink, so nothing would leave it",
            operation="plan",
            hint="End a stream with .to(hf.parquet('out/')).",
        )
    planned = _Planner(flow).run()
    cycles.check(planned, [loop.name for loop in flow.loops])
    updates.check(planned)
    guarantee.check(planned)
    return planned


class _Planner:
    """Walks the graph from the sinks upwards."""

    def __init__(self, flow: FlowDescription) -> None:
        self.flow = flow
        self.cut: dict[Node, str] = {}
        self.sources: dict[str, SourceDescription] = {}
        self.stages: list[StageSpec] = []
        self.positions = {node: i for i, node in enumerate(flow.stateful)}
        self.closings: dict[nodes.Feedback, Node] = {}  # of the loops that were come to, in this order

    def run(self) -> FlowPlan:
        sinks = [
            SinkSpec(self._sink_name(node, port, i), *self._origin(node, port), description)
            for i, (node, port, description) in enumerate(self.flow.sinks)
        ]
        loops = self._closed()
        kept = {node for node, port, _ in self.flow.sinks if port == QUARANTINE}
        kept_sources = {node.name for node in kept if isinstance(node, nodes.Source)}
        sinks += [
            SinkSpec(f"{name}-{QUARANTINE}-counted", self._quarantine(name), OUT, DiscardSink())
            for name, description in self.sources.items()
            if description.quarantines and name not in kept_sources
        ]
        flow, names = self.flow, [stage.name for stage in self.stages]
        for node in flow.policies:
            stage_made_by(node, self.cut, "recover")
        for node in flow.starts:
            stage_made_by(node, self.cut, "read_from")
        groups = groups_of(flow.placed, self.cut, names)
        return FlowPlan(
            name=flow.name,
            guarantee=flow.guarantee,
            survives=flow.survives,
            sources=self.sources,
            stages=tuple(self.stages),
            sinks=tuple(sinks),
            groups=groups,
            replica=flow.replica,
            tracker=flow.tracker,
            loops=loops,
            trigger_us=flow.trigger_us,
            tables={name: flow.tables[name] for stage in self.stages for name in stage.tables},
        )

    def _closed(self) -> tuple[LoopSpec, ...]:
        """Cut what closes loops, after what reads them; that may lead to further loops."""
        found: list[LoopSpec] = []
        while len(found) < len(self.closings):
            loop, closing = list(self.closings.items())[len(found)]
            found.append(LoopSpec(loop.name, self._stage(closing), loop.schema))
        return tuple(found)

    def _sink_name(self, node: Node, port: str, position: int) -> str:
        if isinstance(node, nodes.Source) and port == QUARANTINE:
            named = _quarantine_name(node.name)
        else:
            named = f"{self._name(node)}-{'sink' if port == OUT else port}"
        earlier = sum(1 for other, at, _ in self.flow.sinks[:position] if other is node and at == port)
        return f"{named}-{earlier + 1}"

    def _origin(self, node: Node, port: str) -> tuple[str, str]:
        """The stage and port that a sink reads; what a source sets aside is the output of a stage of its own."""
        if isinstance(node, nodes.Source) and port == QUARANTINE:
            self.sources[node.name] = node.description
            return self._quarantine(node.name), OUT
        return self._stage(node), port

    def _quarantine(self, source: str) -> str:
        """The stage that keeps the malformed rows of a source; without a sink they are counted all the same."""
        name = _quarantine_name(source)
        if not self._is_cut(name):
            aside = Read(Input("source", source, QUARANTINE))
            self.stages.append(StageSpec(name, aside, None, self._reaching(self.flow.default_policy)))
        elif not next(stage for stage in self.stages if stage.name == name).keeps_malformed:
            raise PlanError(f"there are two stages named {name!r}", operation="plan")
        return name

    def _reaching(self, policy: Policy) -> Policy:
        return policy.reaching(self.flow.survives)

    def _is_cut(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    def _stage(self, node: Node) -> str:
        if node in self.cut:
            return self.cut[node]
        name = self.cut[node] = self._name(node)
        operator = node if isinstance(node, Stateful) else None
        prefix, right = self._sides(node)
        if self._is_cut(name):
            raise PlanError(f"there are two stages named {name!r}", operation="plan")
        sides = frozenset(port for other, port, _ in self.flow.sinks if operator is other and port != OUT)
        policy = self._reaching(self.flow.policies.get(node, self.flow.default_policy))
        begins = self.flow.starts.get(node, OLDEST)
        self.stages.append(StageSpec(name, prefix, operator, policy, sides, right, self._stays(node), begins))
        return name

    def _stays(self, node: Node) -> bool:
        """Whether a stage's name is the same when others come and go in front of it."""
        return node in self.flow.names or not (node in self.positions or node in self._fed_to_sinks())

    def _fed_to_sinks(self) -> list[Node]:
        """The stateless streams that sinks read, each once, in order."""
        return list(
            dict.fromkeys(n for n, port, _ in self.flow.sinks if n not in self.positions and port == OUT)
        )

    def _sides(self, node: Node) -> tuple[Prefix, Prefix | None]:
        """What a stage reads: the streams behind its operator, or, without one, all that the node is made of."""
        if isinstance(node, nodes.Join):
            return self._prefix(node.left), self._prefix(node.right)
        if isinstance(node, Stateful):
            return self._prefix(node.upstream), None
        return self._inner(node), None

    def _prefix(self, node: Node) -> Prefix:
        """A prefix reads the channel of a node that keeps state or closes a loop, and takes in any other."""
        if node in self.positions or node in self.flow.loops.values():
            return Read(Input("channel", self._stage(node), OUT))
        return self._inner(node)

    def _inner(self, node: Node) -> Prefix:
        match node:
            case nodes.Source(name=name, description=description):
                self.sources[name] = description
                return Read(Input("source", name))
            case nodes.Feedback():
                closing = self.closings[node] = cycles.closing(self.flow.loops, node)
                return Read(Input("channel", self._name(closing), OUT), feedback=True)
            case nodes.Transform(upstream=upstream, function=function):
                return Apply(self._prefix(upstream), function)
            case nodes.AsRows(upstream=upstream):
                return taken_as_rows(self._prefix(upstream))
            case nodes.Union(upstreams=upstreams):
                return Concat(tuple(self._prefix(upstream) for upstream in upstreams))
            case _:
                raise PlanError(f"{node!r} cannot be planned", operation="plan")

    def _name(self, node: Node) -> str:
        """The user's name, or one from the position among the stateful steps or the sinks."""
        if node in self.flow.names:
            return self.flow.names[node]
        if node in self.positions:
            return f"{_kind(node)}-{self.positions[node] + 1}"
        order = self._fed_to_sinks()
        if node in order:
            return f"rows-{order.index(node) + 1}"
        return f"{next(loop.name for loop, closing in self.flow.loops.items() if closing is node)}-feedback"


def _quarantine_name(source: str) -> str:
    return f"{source}-{QUARANTINE}"


def _kind(node: Node) -> str:
    match node:
        case nodes.Dedup():
            return "dedup"
        case nodes.Join():
            return "join"
        case nodes.OwnOperator():
            return "stateful"
        case nodes.Substream():
            return "substream"
        case _:
            return "aggregate"
