"""The graph that a flow file builds: nodes know what is upstream of them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.aggregates import Aggregate
from holdfast.flow.endpoints import SourceDescription

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


Node = Source | Transform | Union | RunningAggregate
