"""The graph that a flow file builds: nodes know what is upstream of them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.aggregates import Aggregate
from holdfast.flow.endpoints import SourceDescription
from holdfast.flow.own import Update
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
class OwnOperator:
    """A user's function of an epoch's rows and the state of their keys."""

    upstream: Node
    function: Update
    by: tuple[str, ...]
    state: str
    output: str
    time: EventTime | None
    order_by: tuple[str, ...]
    expire_us: int | None


Stateful = RunningAggregate | WindowAggregate | Dedup | OwnOperator
Node = Source | Transform | Union | Stateful


def time_of(node: Node | None) -> EventTime | None:
    """The event time by which a node judges its rows, if it does."""
    return getattr(node, "time", None)
