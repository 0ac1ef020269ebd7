"""The graph that a flow file builds: nodes know what is upstream of them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.aggregates import Aggregate
from holdfast.flow.endpoints import SourceDescription
from holdfast.flow.joins import Matching
from holdfast.flow.windows import EventTime, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transformation = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, eq=False)
class Source:
    """Where rows enter the flow."""

    name: str
    description: SourceDescription


@dataclass(frozen=True, eq=False)
class Transform:
    """Any stateless DataFrame -> DataFrame step."""

    upstream: Node
    function: Transformation


@dataclass(frozen=True, eq=False)
class Union:
    """The rows of several streams, columns matched by name."""

    upstreams: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class RunningAggregate:
    """Aggregates per key over all rows so far; each epoch emits the keys it changed."""

    upstream: Node
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]


@dataclass(frozen=True, eq=False)
class WindowAggregate:
    """Aggregates per key and window."""

    upstream: Node
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: Window

    @property
    def time(self) -> EventTime:
        """The event time that its windows are over."""
        return self.window.time


@dataclass(frozen=True, eq=False)
class Dedup:
    """Rows whose id was not accepted within a span of event time around them."""

    upstream: Node
    ids: tuple[str, ...]
    within_us: int
    time: EventTime


@dataclass(frozen=True, eq=False)
class Join:
    """Pairs of rows of two streams that have equal keys and times near each other."""

    left: Node
    right: Node
    matching: Matching

    @property
    def time(self) -> EventTime:
        """What both sides' event times share: how late rows may be, and how far ahead."""
        return self.matching.times[0]


Stateful = RunningAggregate | WindowAggregate | Dedup | Join
Node = Source | Transform | Union | Stateful


def upstreams(node: Node) -> tuple[Node, ...]:
    """What a node reads, in order."""
    match node:
        case Source():
            return ()
        case Union():
            return node.upstreams
        case Join():
            return node.left, node.right
        case _:
            return (node.upstream,)
