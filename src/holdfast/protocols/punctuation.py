"""Punctuations: the end of a substream travels in the channels, behind its last row.

A source that closes a label puts a punctuation into each of its channels, one for every task that reads it. A task
that has read one on all its input channels will get no further row of the label: it makes its final emission and, in
the same commit, puts its own punctuation behind it. The substream has ended when the last task has done so.

Invariants, on which safety rests:

1. Channels keep their order: a punctuation is read after everything that was sent before it.
2. A punctuation is sent in the commit of the sender's last emission under the label, or later, never before.
3. A task sends one only after it has read one from every task of every stage that it reads.

By induction over the graph, a task that has read them all has read every row of the label that will ever come. The
induction needs a first task in every path, so there can be no cycle: a stage in a cycle would wait for itself.

No agent, no hashing and no luck are involved; the price is a message for every pair of tasks that a channel connects.
A node's own reports are all that `due` takes to answer for that node, so that every node can keep its own part; the
whole, as here, is for whoever wants to see it all. It says nothing of rows that leave by channels without order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.protocols.substreams import (
    Change,
    Graph,
    Heads,
    Node,
    Report,
    Verdict,
    Waiting,
    check_members,
    refusal,
)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """In one channel: no row of the label comes from this sender any more."""

    label: str
    sender: Node
    reader: Node

    def to_json(self) -> Json:
        return {"end": self.label, "sender": list(self.sender), "reader": list(self.reader)}


@dataclass
class _Passage:
    """How far a label has come."""

    read: dict[Node, set[Node]] = field(default_factory=dict)  # by reader, whose punctuation it has read
    closed: set[Node] = field(default_factory=set)  # who has sent its own


def punctuations(graph: Graph, sender: Node, label: str) -> list[Punctuation]:
    """What a node sends when it closes a label: one to each task that reads it.

    >>> from holdfast.protocols.substreams import Stage
    >>> graph = Graph({"in": Stage(), "out": Stage(("in",), tasks=3)})
    >>> len(punctuations(graph, Node("in"), "monday"))
    3
    """
    readers = graph.readers[sender.stage]
    return [Punctuation(label, sender, node) for reader in readers for node in graph.nodes_of(reader)]


class Punctuations:
    """Which ends every node has read and sent.

    >>> from holdfast.protocols.substreams import Stage
    >>> tracker = Punctuations(Graph({"in": Stage(), "out": Stage(("in",))}))
    >>> tracker.apply(Report(0, Node("in"), 0, -1, (Change("monday", closed=True),)))
    <Verdict.APPLIED: 'applied'>
    >>> str(tracker.waits_for("monday"))
    '1 in flight; held by out[0]'
    >>> read = Report(0, Node("out"), 0, -1, (Change("monday", ends=(Node("in"),)),))
    >>> tracker.apply(read), tracker.due("monday")
    (<Verdict.APPLIED: 'applied'>, frozenset({Node(stage='out', task=0)}))
    >>> tracker.apply(Report(0, Node("out"), 1, 0, (Change("monday", closed=True),))), tracker.ended("monday")
    (<Verdict.APPLIED: 'applied'>, True)
    """

    def __init__(self, graph: Graph) -> None:
        if graph.cyclic:
            raise PlanError(
                f"punctuations cannot pass the cycle of {', '.join(sorted(graph.cyclic))}: "
                "each of these stages would wait for its own punctuation",
                operation="track substreams",
                hint="Track the substreams of this flow with the XOR tracker.",
            )
        self._graph = graph
        self._inputs = {
            name: frozenset(node for read in stage.reads for node in graph.nodes_of(read))
            for name, stage in graph.stages.items()
        }
        self._heads = Heads()
        self._passages: dict[str, _Passage] = {}
        self._ended: dict[str, None] = {}

    def apply(self, report: Report) -> Verdict:
        """Take in which punctuations an epoch has read and sent."""
        check_members(self._graph, report)
        verdict = self._heads.judge(report)
        if verdict is Verdict.APPLIED:
            for change in report.changes:
                self._check(report, change)
            for change in report.changes:
                self._change(report.node, change)
            self._heads.advance(report)
        return verdict

    def due(self, label: str) -> frozenset[Node]:
        """Nodes that have read the end on all inputs and have not sent it on."""
        passage = self._passages.get(label)
        if passage is None:
            return frozenset()
        return frozenset(
            node for node in passage.read if node not in passage.closed and self._has_read_all(passage, node)
        )

    def ended(self, label: str) -> bool:
        """Whether every node has made its final emission."""
        return label in self._ended

    def waits_for(self, label: str) -> Waiting:
        """Sources that have not closed it, punctuations that were sent and not read, nodes that have not sent theirs."""
        if label in self._ended:
            return Waiting()
        passage = self._passages.get(label, _Passage())
        others = self._graph.nodes - self._graph.sources - passage.closed
        unread = sum(
            len((passage.closed & self._inputs[node.stage]) - passage.read.get(node, set()))
            for node in others
        )
        sources = self._graph.sources - passage.closed
        return Waiting(tuple(sorted(sources)), unread, tuple(sorted(others)))

    def open_labels(self) -> tuple[str, ...]:
        return tuple(self._passages)

    def forget(self, label: str) -> None:
        """Drop the memory of a substream that has ended."""
        self._ended.pop(label, None)

    def to_json(self) -> Json:
        """All that it knows."""
        return {
            "heads": self._heads.to_json(),
            "ended": list(self._ended),
            "passages": {
                label: {
                    "read": [[*reader, sorted(senders)] for reader, senders in passage.read.items()],
                    "closed": sorted(passage.closed),
                }
                for label, passage in self._passages.items()
            },
        }

    @classmethod
    def from_json(cls, graph: Graph, body: Json) -> Punctuations:
        tracker = cls(graph)
        tracker._heads = Heads.from_json(body["heads"])
        tracker._ended = dict.fromkeys(body["ended"])
        for label, passage in body["passages"].items():
            read = {
                Node(stage, task): {Node(*sender) for sender in senders}
                for stage, task, senders in passage["read"]
            }
            tracker._passages[label] = _Passage(read, {Node(*node) for node in passage["closed"]})
        return tracker

    def _has_read_all(self, passage: _Passage, node: Node) -> bool:
        return passage.read.get(node, set()) >= self._inputs[node.stage]

    def _check(self, report: Report, change: Change) -> None:
        """Refuse what would break the invariants, before anything of the report is applied."""
        passage = self._passages.get(change.label, _Passage())
        if change.label in self._ended or report.node in passage.closed:
            raise refusal(report, f"it touches {change.label!r}, which the node has closed")
        if not self._inputs[report.node.stage] >= set(change.ends):
            raise refusal(
                report, f"it has read the end of {change.label!r} from a node that it does not read"
            )
        if (
            change.closed
            and report.node not in self._graph.sources
            and not self._has_read_all(passage, report.node)
        ):
            raise refusal(report, f"it closes {change.label!r} before all inputs have")

    def _change(self, node: Node, change: Change) -> None:
        passage = self._passages.setdefault(change.label, _Passage())
        if change.ends:
            passage.read.setdefault(node, set()).update(change.ends)
        if change.closed:
            passage.closed.add(node)
        if len(passage.closed) == len(self._graph.nodes):
            del self._passages[change.label]
            self._ended[change.label] = None
