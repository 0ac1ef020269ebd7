"""The schedule of a seed: a graph of stages, which of them snapshots capture, who runs them, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.protocols.snapshots import MODES, Region

# Faults strike in this many steps; afterwards everything must come to rest.
FAULTS_STEPS = 450

# A row is where it was born, its place there, and the stages that have handed it on, a letter each.
Row = tuple[str, int, str]

# How often a row of a cycle comes back to a stage before it is not handed on any more.
VISITS_MAX = 2


@dataclass(frozen=True)
class Graph:
    """Stages, in an order in which each but for what is fed back comes after what it reads."""

    inputs: Mapping[
        str, Mapping[str, str | None]
    ]  # by stage and input, the stage that writes it; None for a source
    inside: frozenset[str]  # what snapshots capture
    sinks: Mapping[str, str]  # by sink, its stage
    picky: frozenset[str]  # stages that hand on only some of the rows, so that epochs are empty
    cyclic: bool

    @property
    def region(self) -> Region:
        """As the protocol wants it: what comes from outside has no producer."""
        return {
            stage: {name: producer if producer in self.inside else None for name, producer in inputs.items()}
            for stage, inputs in self.inputs.items()
            if stage in self.inside
        }

    @property
    def sources(self) -> list[str]:
        """All that rows come from."""
        found = {
            name for inputs in self.inputs.values() for name, producer in inputs.items() if producer is None
        }
        return sorted(found)

    def readers(self, stage: str) -> list[str]:
        """Stages that read a stage."""
        return [name for name, inputs in self.inputs.items() if channel(stage) in inputs]

    def handed_on(self, stage: str, row: Row) -> list[Row]:
        """What a stage makes of a row: nothing that depends on when it comes."""
        source, ordinal, path = row
        if path.count(stage) >= VISITS_MAX or (stage in self.picky and (ordinal + ord(stage)) % 3):
            return []
        return [(source, ordinal, path + stage)]


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for."""

    seed: int
    graph: Graph
    mode: str
    other_modes: tuple[str, ...]  # that a clean restart may bring
    groups: Mapping[str, tuple[str, ...]]
    items: int  # that each source brings
    every: int  # steps between snapshots
    min_pause: int
    max_concurrent: int
    timeout: int  # in steps, while faults strike
    slow: Mapping[str, float]  # by stage, how likely it is to get anything done when it is its turn
    faulty: bool
    crash: float  # at a point of the protocol
    pause: float  # there, while others go on
    wishes: float  # how likely a step is in which somebody asks for a snapshot
    befall: float  # how likely a step is one in which something is lost
    down_max: int = 25

    def __str__(self) -> str:
        graph = self.graph
        reads = {stage: [name.partition(":")[2] for name in inputs] for stage, inputs in graph.inputs.items()}
        return (
            f"seed {self.seed}: {self.mode}{' or '.join(('', *self.other_modes))}, {reads}, inside {sorted(graph.inside)}, "
            f"sinks of {sorted(graph.sinks.values())}, picky {sorted(graph.picky)}, groups {dict(self.groups)}, "
            f"{self.items} items, every {self.every}, pause {self.min_pause}, concurrent {self.max_concurrent}, "
            f"timeout {self.timeout}, crash {self.crash}, pauses {self.pause}, befall {self.befall}, asked {self.wishes}"
        )


def channel(stage: str) -> str:
    """How the ledger spells the output of a stage."""
    return f"channel:{stage}.out"


def draw(
    seed: int,
    rng: random.Random,
    mode: str | None = None,
    faulty: bool | None = None,
    changing: bool | None = None,
) -> Schedule:
    """The schedule of a seed; mode and faults can be said where the seed should not decide.

    `changing` is one that looks for what happens where a mode that waits for markers follows one that does not.
    """
    drawn = rng.choice((*MODES, "aligned", "unaligned"))
    mode = "at_least_once" if changing else mode or drawn
    cyclic = mode == "unaligned" and rng.random() < 0.5 and not changing
    graph = _graph(rng, cyclic)
    changes = not cyclic and (rng.random() < 0.15 or bool(changing))
    struck = rng.random() < 0.9
    faulty = struck if faulty is None else faulty
    return Schedule(
        seed, graph, mode,
        ("unaligned",) if changing else tuple(rng.sample(MODES, 2)) if changes else (),
        _groups(rng, list(graph.inputs)),
        items=rng.randint(3, 15),
        every=5 if changing else rng.choice((5, 10, 30)),
        min_pause=rng.choice((0, 0, 10)),
        max_concurrent=3 if changing else rng.choice((1, 1, 2, 3)),
        timeout=rng.choice((40, 150, 1_000, 1_000)) if faulty and not changing else 100_000,
        slow={stage: rng.choice((1.0, 1.0, 0.4, 0.1)) for stage in graph.inputs},
        faulty=faulty,
        crash=rng.choice((0.0, 0.01, 0.04)),
        pause=rng.choice((0.0, 0.05, 0.2)),
        wishes=rng.choice((0.0, 0.0, 0.05)),
        befall=0.02 if changing else rng.choice((0.0, 0.004, 0.012)),
    )  # fmt: skip


def _graph(rng: random.Random, cyclic: bool) -> Graph:
    names = "abcdefg"[: rng.randint(2, 7)]
    outside = {names[0]} if len(names) > 2 and rng.random() < 0.3 else set()
    outside |= {names[-1]} if len(names) > 2 and rng.random() < 0.3 else set()
    inside = [name for name in names if name not in outside]
    inputs: dict[str, dict[str, str | None]] = {}
    for at, name in enumerate(names):
        # Nobody reads what stands outside at the end, and what stands there reads the region.
        before = [other for other in names[:at] if name != names[-1] or name in inside or other in inside]
        read = rng.sample(before, rng.randint(1, min(2, len(before)))) if before else []
        if at and rng.random() < 0.15:
            read = []
        inputs[name] = {channel(other): other for other in sorted(read)}
        if not read or rng.random() < 0.15:
            inputs[name][f"source:{rng.choice('xyz')}"] = None
    for _ in range(rng.randint(1, 2) if cyclic else 0):
        late = rng.choice(inside)
        early = rng.choice(inside[: inside.index(late) + 1])
        inputs[early][channel(late)] = late
    read_by = {producer for named in inputs.values() for producer in named.values()}
    sinks = {f"sink-{name}": name for name in names if name not in read_by or rng.random() < 0.3}
    picky = frozenset(name for name in names if rng.random() < 0.2)
    return Graph(inputs, frozenset(inside), sinks, picky, cyclic)


def _groups(rng: random.Random, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Who runs what, at random: neighbours need not run together."""
    number = rng.randint(1, min(3, len(names)))
    dealt: dict[str, list[str]] = {f"g{at}": [names[at]] for at in range(number)}
    for name in names[number:]:
        dealt[rng.choice(sorted(dealt))].append(name)
    return {group: tuple(stages) for group, stages in dealt.items()}
