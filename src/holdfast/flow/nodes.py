"""The graph that a flow file builds: nodes know what is upstream of them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.duration import spelled
from holdfast.core.json import Json
from holdfast.flow.aggregates import Aggregate
from holdfast.flow.endpoints import SourceDescription
from holdfast.flow.joins import Matching
from holdfast.flow.own import EachKey, Final, Update
from holdfast.flow.substreams import Labelling
from holdfast.flow.verbs import Verb
from holdfast.flow.windows import EventTime, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transformation = Callable[["DataFrame"], "DataFrame"] | Verb


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
class AsRows:
    """The same rows; where they replace rows, each change is meant as a row of its own."""

    upstream: Node


@dataclass(frozen=True, eq=False)
class RunningAggregate:
    """Aggregates per key over all rows so far; each epoch emits the keys it changed, or each leaves once, at the end."""

    upstream: Node
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    at_end: bool = False  # whether a key leaves once, when its substream has ended

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        emit = {"emit": "end"} if self.at_end else {}
        keys = list(self.keys)
        return {"kind": "running aggregate", "keys": keys, **emit, "aggregates": _sql(self.aggregates)}


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

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "window aggregate",
            "keys": list(self.keys),
            **self.window.facts,
            "aggregates": _sql(self.aggregates),
        }


@dataclass(frozen=True, eq=False)
class Dedup:
    """Rows whose id was not accepted within a span of event time around them; without a span, never before."""

    upstream: Node
    ids: tuple[str, ...]
    within_us: int | None
    time: EventTime | None
    at_the_door: bool = False  # it came with the source

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "dedup",
            "ids": list(self.ids),
            "within": "ever" if self.within_us is None else spelled(self.within_us),
            "time": self.time.facts if self.time else None,
        }


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
    on_end: Final | None = None  # what becomes of the keys of a substream that has ended

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        inner = self.function.function if isinstance(self.function, EachKey) else self.function
        return {
            "kind": "stateful",
            "function": name_of(inner),
            "keys": list(self.by),
            "state": self.state,
            "order_by": list(self.order_by),
            "expire_after": None if self.expire_us is None else spelled(self.expire_us),
            **({"on_end": name_of(self.on_end)} if self.on_end else {}),
            "time": self.time.facts if self.time else None,
        }


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

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        matching = self.matching
        return {
            "kind": f"{matching.how} join",
            "keys": list(matching.keys),
            "within": f"{spelled(matching.low_us)} to {spelled(matching.high_us)}",
            "time": {**self.time.facts, "column": [time.column for time in matching.times]},
        }


@dataclass(frozen=True, eq=False)
class Feedback:
    """Where rows that went round a loop come in again; the flow knows which stream they are the output of."""

    name: str
    schema: str


@dataclass(frozen=True, eq=False)
class Substream:
    """Puts a label on every row: the source of its substreams."""

    upstream: Node
    labelling: Labelling
    time: EventTime | None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        time = self.time.facts if self.time else None
        return {"kind": "substream", **self.labelling.facts, "time": time}


Stateful = RunningAggregate | WindowAggregate | Dedup | Join | OwnOperator | Substream
Node = Source | Feedback | Transform | Union | AsRows | Stateful


def upstreams(node: Node) -> tuple[Node, ...]:
    """What a node reads, in order."""
    match node:
        case Source() | Feedback():
            return ()
        case Union():
            return node.upstreams
        case Join():
            return node.left, node.right
        case _:
            return (node.upstream,)


def source_at(node: Node) -> Source | None:
    """The source that a node is, or that it came with."""
    origin = node.upstream if isinstance(node, Dedup) and node.at_the_door else node
    return origin if isinstance(origin, Source) else None


def time_of(node: Node | None) -> EventTime | None:
    """The event time by which a node judges its rows, if it does."""
    return getattr(node, "time", None)


def name_of(function: object) -> str:
    """What a person calls a function; of a step that says itself what it does, that."""
    if isinstance(function, Verb):
        return str(function)
    return getattr(function, "__name__", type(function).__name__)


def _sql(aggregates: tuple[tuple[str, Aggregate], ...]) -> Json:
    return {name: aggregate.text() for name, aggregate in aggregates}
