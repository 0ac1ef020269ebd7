"""The schedule of a seed: a graph, what its sources send, and what goes wrong when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.protocols.substreams import Graph, Node, Stage

FAULTS_TICKS = 250  # faults begin within this time


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for."""

    seed: int
    by: str  # tracker or punctuation
    graph: Graph
    labels: tuple[str, ...]
    shards: int
    stateful: frozenset[str]
    scripts: dict[Node, list[tuple[str, str]]]  # what sources do, in order
    delay_max: int
    loss: float
    repeat: float
    crashes: tuple[int, ...]  # of tasks
    agent_crashes: tuple[int, ...]

    def __str__(self) -> str:
        stages = {name: (list(stage.reads), stage.tasks) for name, stage in self.graph.stages.items()}
        return (
            f"seed {self.seed}: {self.by}, stages {stages}, stateful {sorted(self.stateful)}, "
            f"{len(self.labels)} labels, {self.shards} shards, delays to {self.delay_max}, loss {self.loss:.2f}, "
            f"repeats {self.repeat:.2f}, crashes at {self.crashes}, of the agent at {self.agent_crashes}"
        )


def draw(seed: int, rng: random.Random, by: str | None = None) -> Schedule:
    """The schedule of a seed; `by` says which tracker, where it should not be left to the seed."""
    by = by or rng.choice(("tracker", "tracker", "punctuation"))
    graph = _graph(rng, cyclic=by == "tracker" and rng.random() < 0.4)
    labels = tuple(f"label-{number}" for number in range(rng.randint(1, 4)))
    return Schedule(
        seed, by, graph, labels,
        shards=rng.randint(1, 3),
        stateful=frozenset(n for n, s in graph.stages.items() if s.reads and rng.random() < 0.5),
        scripts={node: _script(rng, labels) for node in sorted(graph.sources)},
        delay_max=rng.choice((1, 5, 20, 60)),
        loss=rng.choice((0.0, 0.1, 0.4)),
        repeat=rng.choice((0.0, 0.2)),
        crashes=tuple(rng.randint(1, FAULTS_TICKS) for _ in range(rng.randint(0, 6))),
        agent_crashes=tuple(rng.randint(1, FAULTS_TICKS) for _ in range(rng.randint(0, 3))),
    )  # fmt: skip


def _graph(rng: random.Random, *, cyclic: bool) -> Graph:
    """Every stage but the first few reads some of those before it; in a cycle, one also reads a later one."""
    names = "abcde"[: rng.randint(2, 5)]
    sources = 2 if len(names) > 2 and rng.random() < 0.4 else 1
    reads = {
        name: set(rng.sample(names[:at], rng.randint(1, min(at, 2)))) if at >= sources else set()
        for at, name in enumerate(names)
    }
    if cyclic:
        back = rng.randrange(sources, len(names))
        reads[names[back]].add(rng.choice(names[back:]))
    return Graph({name: Stage(tuple(sorted(read)), rng.randint(1, 3)) for name, read in reads.items()})


def _script(rng: random.Random, labels: tuple[str, ...]) -> list[tuple[str, str]]:
    """Emissions of all labels in any order; each label is closed somewhere behind its last, also one without any."""
    steps = [("emit", label) for label in labels for _ in range(rng.randint(0, 4))]
    rng.shuffle(steps)
    for label in labels:
        last = max((at for at, step in enumerate(steps) if step == ("emit", label)), default=-1)
        steps.insert(rng.randint(last + 1, len(steps)), ("close", label))
    return steps
