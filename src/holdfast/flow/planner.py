"""Cuts a flow into stages: a stateless prefix, at most one stateful operator, an output.

A node becomes a stage of its own when it is stateful, feeds a sink or is fed back; everything else is folded into
the prefix of the stages that read it, where Spark optimises it together with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from holdfast.core.errors import PlanError
from holdfast.flow import cycles, guarantee, nodes, updates
from holdfast.flow.cycles import LoopSpec
from holdfast.flow.endpoints import DiscardSink, SinkDescription, SourceDescription
from holdfast.flow.fingerprint import code_of, fingerprint_of, operator_text
from holdfast.flow.flow import FlowDescription
from holdfast.flow.nodes import Node, Stateful
from holdfast.flow.on_stage import OLDEST
from holdfast.flow.placement import MAIN, Group, dealt, groups_of, stage_made_by
from holdfast.flow.policies import Policy, Snapshots
from holdfast.flow.ports import OUT, QUARANTINE
from holdfast.flow.prefixes import (
    Apply,
    Concat,
    Input,
    Prefix,
    Read,
    describe_prefix,
    functions,
    leaves,
    reads,
    taken_as_rows,
    untouched,
)
from holdfast.flow.tables import Enrich, TableSpec


@dataclass(frozen=True)
class Feed:
    """An input as one side of a stage reads it: sides have their own time columns, so each has its own clock."""

    side: int
    input: Input

    @property
    def id(self) -> str:
        """As manifests spell it."""
        return self.input.id if self.side == 0 else f"right:{self.input.id}"


@dataclass(frozen=True)
class StageSpec:
    """One stage: what it reads, what it does to the rows, and the state it keeps."""

    name: str
    prefix: Prefix
    operator: Stateful | None
    policy: Policy  # not part of the fingerprint: how a stage recovers does not change its results
    side_ports: frozenset[str] = frozenset()  # that a sink reads beside `out`
    right: Prefix | None = None  # of a join: the second stream
    named: bool = True  # False where the name comes from its position in the flow
    read_from: str = OLDEST  # not part of the fingerprint either: where it begins when it is new

    @property
    def sides(self) -> tuple[Prefix, ...]:
        """The streams that the operator takes: one, or the two of a join."""
        return (self.prefix,) if self.right is None else (self.prefix, self.right)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of all sides, each once, in the order in which they are read."""
        return tuple(dict.fromkeys(feed.input for feed in self.feeds))

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that its rows are enriched with, each once."""
        steps = [step for prefix in self.sides for step in functions(prefix)]
        return tuple(dict.fromkeys(step.table for step in steps if isinstance(step, Enrich)))

    @property
    def keeps_malformed(self) -> bool:
        """Whether it is the stage that keeps what a source has set aside."""
        return (
            isinstance(self.prefix, Read) and self.prefix.input.port == QUARANTINE and self.operator is None
        )

    @property
    def ports(self) -> tuple[str, ...]:
        """The ports that it writes to."""
        return (OUT, *sorted(self.side_ports))

    @property
    def feedback(self) -> frozenset[Input]:
        """The inputs whose rows come back to it."""
        return frozenset(read.input for prefix in self.sides for read in reads(prefix) if read.feedback)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The inputs side by side, each once a side: a stream that is joined with itself is read by both."""
        return tuple(
            dict.fromkeys(
                Feed(number, leaf) for number, prefix in enumerate(self.sides) for leaf in leaves(prefix)
            )
        )

    def reads_as_is(self, origin: Input, side: int = 0) -> bool:
        """Whether rows of an input reach the operator as they are, with no code of the user's in between."""
        return untouched(self.sides[side], origin)

    @property
    def reads_each_once(self) -> bool:
        """Whether no input is read twice."""
        return sum(len(leaves(prefix)) for prefix in self.sides) == len(self.inputs)

    def fingerprint(self) -> str:
        """Changes when the stage's description does, or its functions, or anything of the user's that these reach."""
        return fingerprint_of(_describe_stage(self), self.code())

    def code(self) -> dict[str, str]:
        """The user's code in it: digests, by what a person calls each piece."""
        return code_of(self.sides, self.operator)


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
    """A flow, cut: stages come after all that they read, but for what is fed back to them."""

    name: str
    guarantee: str
    survives: str
    sources: dict[str, SourceDescription]
    stages: tuple[StageSpec, ...]
    sinks: tuple[SinkSpec, ...]
    groups: tuple[Group, ...]  # of stages, each in a worker process of its own
    replica: str | None  # the directory of the tier `replica`
    tracker: str  # of substreams: "xor" or "punctuation"
    loops: tuple[LoopSpec, ...] = ()  # what is fed back
    trigger_us: int | None = None  # between two epochs of a stage that take rows of sources
    tables: dict[str, TableSpec] = field(default_factory=dict)  # that stages are enriched with

    @cached_property
    def cycles(self) -> tuple[frozenset[str], ...]:
        """The stages that lie on cycles: sets of stages of which each leads to each, in the order of the flow."""
        reads = {s.name: {i.name for i in s.inputs if i.kind == "channel"} for s in self.stages}
        return cycles.components(reads)

    def cycle_of(self, stage: str) -> frozenset[str]:
        """The cycle that a stage lies on; empty if it lies on none."""
        return next((cycle for cycle in self.cycles if stage in cycle), frozenset())

    def group_of(self, stage: str) -> Group:
        """The group that a stage is in."""
        return next(group for group in self.groups if stage in group.stages)

    def policies_of(self, group: Group) -> list[Policy]:
        """How the stages of a group recover."""
        return [stage.policy for stage in self.stages if stage.name in group.stages]

    @property
    def region(self) -> dict[str, dict[str, str | None]]:
        """The stages that snapshots capture as one, with their inputs and which of the region writes each."""
        inside = {stage.name: stage for stage in self.stages if stage.policy.snapshots}
        return {
            name: {
                origin.id: origin.name if origin.kind == "channel" and origin.name in inside else None
                for origin in stage.inputs
            }
            for name, stage in inside.items()
        }

    @property
    def snapshots(self) -> Snapshots | None:
        """How the region is captured; None if there is none."""
        return next((stage.policy.snapshots for stage in self.stages if stage.policy.snapshots), None)

    def spread(self, workers: int) -> FlowPlan:
        """The same flow in so many groups; in fewer, where it has fewer stages."""
        return replace(self, groups=dealt(self.groups, workers))

    def triggered(self, every_us: int) -> FlowPlan:
        """The same flow with another trigger."""
        return replace(self, trigger_us=every_us)

    def alone(self) -> FlowPlan:
        """The same flow in one group, for a process that runs all of it."""
        return replace(self, groups=(Group(MAIN, tuple(stage.name for stage in self.stages)),))

    def readers(self, stage: str) -> list[tuple[str, str]]:
        """Who reads which port of a stage: other stages and sinks, as the ledger's cursors name them."""
        channels = [(s.name, i) for s in self.stages for i in s.inputs if i.kind == "channel"]
        stages = [(f"stage:{name}", i.port) for name, i in channels if i.name == stage]
        return stages + [(f"sink:{s.name}", s.port) for s in self.sinks if s.stage == stage]

    def consumers(self, stage: str) -> list[str]:
        """Who reads any port of a stage."""
        return [name for name, _ in self.readers(stage)]

    def cursors(self) -> list[tuple[str, str]]:
        """Every consumer with every input that it reads, as the ledger's cursors name them."""
        stages = [(f"stage:{s.name}", origin.id) for s in self.stages for origin in s.inputs]
        return stages + [(f"sink:{s.name}", s.input.id) for s in self.sinks]


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


def _describe_stage(stage: StageSpec) -> str:
    ports = f" {sorted(stage.side_ports)}" if stage.side_ports else ""
    sides = " & ".join(describe_prefix(prefix) for prefix in stage.sides)
    return f"{sides} | {operator_text(stage.operator)}{ports}"
