"""What one kind of target brings to the benchmark of sinks: its sides, its figures, and what they have to reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.bench.report import Bar, Figure
from holdfast.bench.rounds import Rounds, Side

FLOW = "bench"


@dataclass(frozen=True)
class Where:
    """What the benchmark may use."""

    postgres: str | None = field(default=None, repr=False)
    jdbc: Path | None = None  # the jar with which Spark reaches it
    kafka: str | None = None  # bootstrap servers


@dataclass(frozen=True)
class Edge:
    """One kind of target. Among its sides are `holdfast`, and `plain`: the same path without record and fence."""

    name: str
    sides: Mapping[str, Side]
    figures: Callable[[Rounds], list[Figure]]
    bars: Mapping[str, Bar]
    slow: frozenset[str] = frozenset()  # sides that take so long that they run in one round only


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Add the seconds that something took."""
    started = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - started)
