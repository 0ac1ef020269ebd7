"""Flow and streams: the words in which a user describes a flow. Nothing here runs anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.aggregates import Aggregate
from holdfast.flow.endpoints import SinkDescription, SourceDescription

if TYPE_CHECKING:
    from holdfast.flow.nodes import Node, Transformation

GUARANTEES = ("at_most_once", "at_least_once", "exactly_once")
SURVIVES = ("process", "power")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_name(name: str, what: str) -> str:
    """Names become parts of file names, so their letters are few."""
    if not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot name a {what}",
            operation="describe",
            hint="Use letters, digits, '_', '-' and '.', starting with a letter or digit.",
        )
    return name


class FlowDescription:
    """A flow as a graph of streams with sinks attached."""

    def __init__(self, name: str, *, guarantee: str = "exactly_once", survives: str = "power") -> None:
        self.name = check_name(name, "flow")
        if guarantee not in GUARANTEES:
            raise PlanError(
                f"guarantee={guarantee!r} is not one of {', '.join(GUARANTEES)}", operation="describe"
            )
        if survives not in SURVIVES:
            raise PlanError(
                f"survives={survives!r} is not one of {', '.join(SURVIVES)}", operation="describe"
            )
        self.guarantee = guarantee
        self.survives = survives
        self.sinks: list[tuple[Node, SinkDescription]] = []
        self.names: dict[Node, str] = {}
        self.stateful: list[Node] = []
        self._sources: dict[str, nodes.Source] = {}

    def source(self, name: str, description: SourceDescription) -> Stream:
        """Add a source of rows."""
        check_name(name, "source")
        if name in self._sources:
            raise PlanError(f"there are two sources named {name!r}", operation="describe")
        node = nodes.Source(name, description)
        self._sources[name] = node
        return Stream(self, node)


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows on their way: transform them, group them, join them with others, send them to a sink."""

    flow: FlowDescription
    node: Node

    def transform(self, function: Transformation) -> Stream:
        """Apply any stateless `DataFrame -> DataFrame` function."""
        if not callable(function):
            raise PlanError(f"transform needs a function, not {function!r}", operation="describe")
        return Stream(self.flow, nodes.Transform(self.node, function))

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and of others, columns matched by name."""
        if any(other.flow is not self.flow for other in others):
            raise PlanError("a union takes streams of one flow", operation="describe")
        return Stream(self.flow, nodes.Union((self.node, *(other.node for other in others))))

    def group_by(self, *keys: str) -> GroupedStream:
        """Group rows by key columns; null is a key like any other."""
        if not keys:
            raise PlanError("group_by needs at least one column", operation="describe")
        if len(set(keys)) != len(keys):
            raise PlanError(f"group_by names a column twice: {', '.join(keys)}", operation="describe")
        return GroupedStream(self, keys)

    def named(self, name: str) -> Stream:
        """Name the stage that makes this stream: its state is found again under this name."""
        check_name(name, "stage")
        taken = [node for node, other in self.flow.names.items() if other == name and node is not self.node]
        if taken:
            raise PlanError(f"there are two stages named {name!r}", operation="describe")
        self.flow.names[self.node] = name
        return self

    def to(self, sink: SinkDescription) -> Stream:
        """Send the rows to a sink, and go on with the same stream."""
        self.flow.sinks.append((self.node, sink))
        return self


@dataclass(frozen=True, eq=False)
class GroupedStream:
    """A stream with keys, waiting to be told what to compute per key."""

    stream: Stream
    keys: tuple[str, ...]

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Keep aggregates per key; each epoch emits the keys it changed, with their new values."""
        if not aggregates:
            raise PlanError("agg needs at least one aggregate, such as n=hf.count()", operation="describe")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise PlanError(
                    f"agg({name}=...) is {aggregate!r}, not an aggregate",
                    operation="describe",
                    hint="Use hf.count, hf.sum, hf.min, hf.max, hf.avg, hf.stddev or hf.variance.",
                )
            if name in self.keys:
                raise PlanError(f"agg({name}=...) has the name of a key", operation="describe")
        node = nodes.RunningAggregate(self.stream.node, self.keys, tuple(aggregates.items()))
        self.stream.flow.stateful.append(node)
        return Stream(self.stream.flow, node)
