"""A flow as the planner cut it: its stages with what they read, its sinks, and which process runs what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from holdfast.flow import cycles
from holdfast.flow.cycles import LoopSpec
from holdfast.flow.endpoints import SinkDescription, SourceDescription
from holdfast.flow.enrichment import Enrich, TableSpec
from holdfast.flow.fingerprint import code_of, fingerprint_of, operator_text
from holdfast.flow.nodes import Stateful
from holdfast.flow.on_stage import OLDEST
from holdfast.flow.placement import MAIN, Group, dealt
from holdfast.flow.policies import Policy, Snapshots
from holdfast.flow.ports import OUT, QUARANTINE
from holdfast.flow.prefixes import (
    Input,
    Prefix,
    Read,
    describe_prefix,
    functions,
    leaves,
    reads,
    untouched,
)


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


def _describe_stage(stage: StageSpec) -> str:
    ports = f" {sorted(stage.side_ports)}" if stage.side_ports else ""
    sides = " & ".join(describe_prefix(prefix) for prefix in stage.sides)
    return f"{sides} | {operator_text(stage.operator)}{ports}"
