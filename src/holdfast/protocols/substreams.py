"""Substreams: when all rows of a label are through. What both trackers share: labels, the graph, reports, answers.

A **substream** is all rows that carry one label: a window, a batch id, a tenant's day. Its **sources** are the stages
that put the label on rows (those that read no labelled rows themselves): only they open a substream, and every one
of them has to close it, also one that never had a row of it; a set that is not known beforehand could grow after the
end. A **message** is what one segment carries of one label to one reader. A stage **holds** a label while it keeps
rows of it that it may still send on: an open window, a side of a join, or a final emission that is still to come.

What a node reports, once an epoch and in the same commit as the epoch itself, is all that a tracker ever sees:
emissions, consumptions, what is held afterwards, what is closed. Rules that a reporting node keeps, and that
trackers refuse to see broken where they can see it:

1. A report is one commit: what an epoch consumed, emitted and holds becomes true at once.
2. Nothing comes from nothing: under a label, a node emits, or begins to hold, only in an epoch that consumes a
   message of that label, or while it holds it, or as a source that has not closed it.
3. Every message is emitted by one report and consumed by one report; a replay of an epoch reports the same.
4. A node's reports have an order, and each names the one before it (`after`), so that none can be passed over.

So a label with every source closed, no message in flight and nothing held stays so for ever: the end is a stable
property, and a tracker only has to make sure not to believe in it before it is true.

A node is a task of a stage, or a whole stage whose tasks were merged into one report: then its number is 0, it holds a
label as long as any of its tasks does, emissions are added up over the tasks that wrote the segments, and consumption is
reported once for the stage, from what the manifests that it read say was emitted to it: tasks share the segments they
read. What is due changes what an epoch emits, so it belongs into the epoch's plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Protocol

from holdfast.core.errors import HoldfastError, PlanError
from holdfast.core.json import Json

_OPERATION = "track substreams"


class Node(NamedTuple):
    """A task of a stage, or all of them as one."""

    stage: str
    task: int = 0

    def __str__(self) -> str:
        return f"{self.stage}[{self.task}]"


@dataclass(frozen=True)
class Stage:
    """A stage as far as labelled rows go: whom it reads them from, and how many nodes report for it."""

    reads: tuple[str, ...] = ()
    tasks: int = 1


@dataclass(frozen=True)
class Graph:
    """Who reads labelled rows from whom. It may have cycles.

    >>> graph = Graph({"in": Stage(), "mean": Stage(("in",)), "out": Stage(("mean",))})
    >>> graph.is_above("in", "out"), graph.is_above("out", "in")
    (True, False)
    """

    stages: Mapping[str, Stage]

    def __post_init__(self) -> None:
        for name, stage in self.stages.items():
            for read in stage.reads:
                if read not in self.stages:
                    raise PlanError(f"it reads {read!r}, which is no stage", operation=_OPERATION, stage=name)
        if not self.sources:
            raise PlanError("no stage puts labels on rows, so no substream can begin", operation=_OPERATION)

    @cached_property
    def sources(self) -> frozenset[Node]:
        """Those that open and close substreams."""
        return frozenset(node for node in self.nodes if not self.stages[node.stage].reads)

    @cached_property
    def nodes(self) -> frozenset[Node]:
        return frozenset(node for stage in self.stages for node in self.nodes_of(stage))

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """By stage, the stages that read it."""
        return {
            name: tuple(reader for reader, stage in self.stages.items() if name in stage.reads)
            for name in self.stages
        }

    @cached_property
    def cyclic(self) -> frozenset[str]:
        """Stages that read, in the end, their own output."""
        return frozenset(name for name in self.stages if name in self._reach[name])

    def nodes_of(self, stage: str) -> tuple[Node, ...]:
        return self._by_stage[stage]

    def is_above(self, stage: str, other: str) -> bool:
        """Whether rows get from one stage to another and not back: a cycle is one place, nobody in it is above."""
        return stage in self._reach[other] and other not in self._reach[stage]

    @cached_property
    def _by_stage(self) -> Mapping[str, tuple[Node, ...]]:
        return {
            name: tuple(Node(name, task) for task in range(stage.tasks))
            for name, stage in self.stages.items()
        }

    @cached_property
    def _reach(self) -> Mapping[str, frozenset[str]]:
        """By stage, all stages that rows can come from."""
        return {name: self._reached(name) for name in self.stages}

    def _reached(self, name: str) -> frozenset[str]:
        found: set[str] = set()
        pending = list(self.stages[name].reads)
        while pending:
            stage = pending.pop()
            if stage not in found:
                found.add(stage)
                pending += self.stages[stage].reads
        return frozenset(found)


@dataclass(frozen=True)
class Change:
    """What one epoch of one node did to one label."""

    label: str
    number: int = 0  # all messages emitted and consumed, as one XOR; for the XOR tracker
    emitted: int = 0  # messages
    consumed: int = 0
    holds: bool = False  # whether the node holds the label after the epoch
    closed: bool = False  # the node emits nothing under the label after this epoch
    ends: tuple[Node, ...] = ()  # whose punctuation the epoch has read; for punctuations

    def to_json(self) -> Json:
        """Without what is as it mostly is; the number in hex, as JSON elsewhere has 53 bits."""
        body: Json = {"label": self.label}
        body |= {"number": f"{self.number:016x}"} if self.number else {}
        body |= {"emitted": self.emitted} if self.emitted else {}
        body |= {"consumed": self.consumed} if self.consumed else {}
        body |= {"holds": True} if self.holds else {}
        body |= {"closed": True} if self.closed else {}
        return body | ({"ends": [list(node) for node in self.ends]} if self.ends else {})

    @classmethod
    def from_json(cls, body: Json) -> Change:
        return cls(
            body["label"],
            int(body.get("number", "0"), 16),
            body.get("emitted", 0),
            body.get("consumed", 0),
            body.get("holds", False),
            body.get("closed", False),
            tuple(Node(*node) for node in body.get("ends", ())),
        )


@dataclass(frozen=True)
class Report:
    """What an epoch did to all labels that it touched. Its identity is branch, node and epoch."""

    branch: int
    node: Node
    epoch: int
    after: int  # the epoch of the node's report before this one in the branch, -1 if there is none
    changes: tuple[Change, ...]

    def to_json(self) -> Json:
        """As a manifest carries it."""
        return {
            "branch": self.branch,
            "node": list(self.node),
            "epoch": self.epoch,
            "after": self.after,
            "changes": [change.to_json() for change in self.changes],
        }

    @classmethod
    def from_json(cls, body: Json) -> Report:
        changes = tuple(Change.from_json(change) for change in body["changes"])
        return cls(body["branch"], Node(*body["node"]), body["epoch"], body["after"], changes)


class Verdict(Enum):
    """What became of a report."""

    APPLIED = "applied"
    KNOWN = "known"  # it was applied before, and changes nothing
    EARLY = "early"  # an earlier one of its node is missing: to be sent again


@dataclass(frozen=True)
class Waiting:
    """What an open substream waits for."""

    sources: tuple[Node, ...] = ()  # that have not closed it
    messages: int = 0  # in flight, at least
    holders: tuple[Node, ...] = ()  # that hold rows of it, or have still to end it

    def __str__(self) -> str:
        parts = [f"not closed by {_names(self.sources)}"] if self.sources else []
        parts += [f"{self.messages} in flight"] if self.messages else []
        parts += [f"held by {_names(self.holders)}"] if self.holders else []
        return "; ".join(parts) or "nothing"


class Substreams(Protocol):
    """Either tracker. A runtime asks `due` before it plans an epoch, and applies the report when it commits it."""

    def apply(self, report: Report) -> Verdict:
        """Take in what an epoch did, once however often it comes."""

    def due(self, label: str) -> frozenset[Node]:
        """Nodes that no row of the label can reach any more, and that have to make their final emission now."""

    def ended(self, label: str) -> bool:
        """Whether no row of the label is or will be anywhere."""

    def waits_for(self, label: str) -> Waiting:
        """Why it has not ended; nothing, if it has."""

    def open_labels(self) -> tuple[str, ...]:
        """Substreams that were heard of and have not ended."""

    def forget(self, label: str) -> None:
        """Drop the memory of a substream that has ended, so that the state follows the open ones.

        What comes under the label afterwards is the beginning of another substream with the same name.
        """

    def to_json(self) -> Json:
        """All that it knows, to be stored with the ledger and read back after a crash."""


class Heads:
    """Up to which epoch the reports of every node were applied: what makes applying them idempotent."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[int, Node], int] = {}

    def judge(self, report: Report) -> Verdict:
        """Whether a report is the next of its node. Decided by identity alone, never by what is in it."""
        head = self._epochs.get((report.branch, report.node), -1)
        if report.epoch <= head:
            return Verdict.KNOWN
        if report.after > head:
            return Verdict.EARLY
        if report.after < head:
            raise refusal(report, f"it follows epoch {report.after}, but epoch {head} was reported since")
        return Verdict.APPLIED

    def advance(self, report: Report) -> None:
        self._epochs[report.branch, report.node] = report.epoch

    def to_json(self) -> list[list[int | str]]:
        return [[branch, *node, epoch] for (branch, node), epoch in self._epochs.items()]

    @classmethod
    def from_json(cls, body: Sequence[tuple[int, str, int, int]]) -> Heads:
        heads = cls()
        heads._epochs = {(branch, Node(stage, task)): epoch for branch, stage, task, epoch in body}
        return heads


def refusal(report: Report, why: str) -> HoldfastError:
    """An error for a report that breaks the rules: its node is wrong, and nothing of the report was applied."""
    return HoldfastError(
        f"the report of {report.node} on substreams is refused: {why}",
        operation=_OPERATION,
        stage=report.node.stage,
        epoch=report.epoch,
    )


def check_members(graph: Graph, report: Report) -> None:
    """Refuse a report of a node that is not in the graph, or that names a label twice."""
    if report.node not in graph.nodes:
        raise refusal(report, "there is no such node in the graph")
    labels = [change.label for change in report.changes]
    if len(labels) != len(set(labels)):
        raise refusal(report, "it names a label twice")


def wire_bytes(body: Json) -> int:
    """How long a message is when it is sent by itself."""
    return len(json.dumps(body, separators=(",", ":")).encode())


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(str(node) for node in sorted(nodes))
