"""The traffic of both trackers, counted message by message while the protocols themselves run, without a network.

The task-to-task model: two successive stages of P tasks each, all-to-all channels between them. Each source task
sends rows of every substream to a few tasks; the tasks of the second stage hold what they get, and make their final
emission when the substream is through. Who has to learn of the end are the P tasks that hold rows, in both cases.

What counts as a message: with punctuations, every punctuation; with the tracker, every report of a task to the agent
and every notice of the agent to a task. A message has the length of its JSON. What does not count: rows, and
acknowledgements, which both would need in the same way. One substream a message on both sides: reports of an epoch
that touches several labels are one message, and punctuations could be sent together as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.protocols.message_numbers import Carried, Segment, tally
from holdfast.protocols.punctuation import Punctuation, Punctuations, punctuations
from holdfast.protocols.substreams import Change, Graph, Node, Report, Stage, Substreams, Verdict, wire_bytes
from holdfast.protocols.tracker import Tracker

SENDER, READER = "sender", "reader"
KEY = b"bench"

# Tasks that one source task sends rows of a substream to: the tracker's traffic does not depend on it, as a task's
# report has one number however many messages it stands for, and every channel needs its punctuation with or without.
FANOUT = 4


@dataclass(frozen=True)
class Traffic:
    """What the end of all substreams took."""

    tracker: str  # punctuations or tracker
    nodes: int  # P
    substreams: int  # K
    epochs: int  # of each task, in which it touched the substream
    messages: int
    bytes: int

    @property
    def messages_each(self) -> float:
        """For one substream."""
        return self.messages / self.substreams

    @property
    def bytes_each(self) -> float:
        return self.bytes / self.substreams


@dataclass
class Wire:
    """Counts what is sent."""

    messages: int = 0
    bytes: int = 0

    def send(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


def two_stages(nodes: int) -> Graph:
    return Graph({SENDER: Stage(tasks=nodes), READER: Stage((SENDER,), tasks=nodes)})


def labels(substreams: int) -> list[str]:
    """As long as a window's start or a tenant's day would be."""
    return [f"2026-01-{number % 28 + 1:02d}T{number // 28:02d}:00" for number in range(substreams)]


def by_punctuations(nodes: int, substreams: int) -> Traffic:
    """Every source task closes the label on all its channels, every reader has to see all of them."""
    graph, wire = two_stages(nodes), Wire()
    tracker, size_of = Punctuations(graph), _Sizes()
    for number, label in enumerate(labels(substreams)):
        for sender in graph.nodes_of(SENDER):
            _apply(tracker, Report(0, sender, number, number - 1, (Change(label, closed=True),)))
            for punctuation in punctuations(graph, sender, label):
                wire.send(size_of(punctuation))
        for reader in graph.nodes_of(READER):
            read = Change(label, ends=graph.nodes_of(SENDER))
            _apply(tracker, Report(0, reader, 2 * number, 2 * number - 1, (read,)))
        for reader in sorted(tracker.due(label)):
            _apply(tracker, Report(0, reader, 2 * number + 1, 2 * number, (Change(label, closed=True),)))
        _ensure_ended(tracker, label)
    return Traffic("punctuations", nodes, substreams, 1, wire.messages, wire.bytes)


def by_tracker(nodes: int, substreams: int, epochs: int) -> Traffic:
    """Every task reports each of its epochs to the agent, which tells those who hold the label when it is through."""
    graph, wire = two_stages(nodes), Wire()
    tracker = Tracker(graph)

    def report(node: Node, epoch: int, change: Change) -> None:
        sent = Report(0, node, epoch, epoch - 1, (change,))
        wire.send(wire_bytes(sent.to_json()))
        _apply(tracker, sent)

    for number, label in enumerate(labels(substreams)):
        first = number * (epochs + 1)
        for at in range(epochs):
            for sender in graph.nodes_of(SENDER):
                emitted = tally(KEY, _sent(graph, sender, number * epochs + at, label))[label]
                last = at == epochs - 1
                report(sender, number * epochs + at, Change(label, *emitted, closed=last))
            for reader in graph.nodes_of(READER):
                number_read, count = tally(KEY, _read(graph, reader, number * epochs + at, label))[label]
                report(reader, first + at, Change(label, number_read, consumed=count, holds=True))
        for notice in tracker.notices(label):
            wire.send(wire_bytes(notice.to_json()))
            report(notice.node, first + epochs, Change(label))
        _ensure_ended(tracker, label)
    return Traffic("tracker", nodes, substreams, epochs, wire.messages, wire.bytes)


def _sent(graph: Graph, sender: Node, epoch: int, label: str) -> Carried:
    """The segments of a source task's epoch, one for each task that it sends rows to."""
    readers = graph.nodes_of(READER)
    targets = [(sender.task + step) % len(readers) for step in range(min(FANOUT, len(readers)))]
    return Carried.of(
        (Segment(0, sender, epoch, position, readers[target]), label)
        for position, target in enumerate(targets)
    )


def _read(graph: Graph, reader: Node, epoch: int, label: str) -> Carried:
    """The same segments from the other side."""
    senders = graph.nodes_of(SENDER)
    return Carried.of(
        (Segment(0, senders[(reader.task - step) % len(senders)], epoch, step, reader), label)
        for step in range(min(FANOUT, len(senders)))
    )


class _Sizes:
    """The length of a punctuation, measured once for all whose tasks' numbers have as many digits."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def __call__(self, punctuation: Punctuation) -> int:
        sender, reader = punctuation.sender.task, punctuation.reader.task
        kind = (len(punctuation.label), len(str(sender)), len(str(reader)))
        if kind not in self._known:
            self._known[kind] = wire_bytes(punctuation.to_json())
        return self._known[kind]


def simulated(sizes: Iterable[int], substreams: int, epochs: Iterable[int]) -> Iterator[Traffic]:
    """Both trackers at every number of nodes; the tracker also with several reports a task."""
    several = list(epochs)
    for nodes in sizes:
        yield by_punctuations(nodes, substreams)
        for count in several:
            yield by_tracker(nodes, substreams, count)


def _apply(tracker: Substreams, report: Report) -> None:
    verdict = tracker.apply(report)
    if verdict is not Verdict.APPLIED:
        raise RuntimeError(f"a report in order was {verdict.value}: {report}")


def _ensure_ended(tracker: Substreams, label: str) -> None:
    if not tracker.ended(label):
        raise RuntimeError(f"{label} has not ended: it waits for {tracker.waits_for(label)}")
