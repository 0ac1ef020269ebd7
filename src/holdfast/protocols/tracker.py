"""The XOR tracker: an agent that knows that a substream has ended although it never sees its messages.

Every message has a number (`message_numbers.py`). Its emission and its consumption both report it, and the agent keeps
one XOR a label: what was emitted and consumed cancels, in whatever order. A task sends the XOR of all its messages of
an epoch, so traffic follows the nodes that report and not the pairs of nodes that talk to each other, and a cycle is
no different from a line.

A substream has **ended** when all its sources have closed it, no node holds it, and the XOR (and the count of
messages) is zero. While nodes still hold it, the XOR being zero and the sources closed, those of them that no other
holder is above are **due**: nothing can reach them any more but from within their own cycle. They make their final
emission and let go of the label in one commit; its messages make the XOR non-zero again until they are through; then
those below are due. So ends go in graph order, and the nodes of a cycle are due together, again as often as they take
the label up again.

Why no end comes early, even if reports come in any order, late, again, or not at all for a while. Let R be the set of
applied reports, and let the XOR over R be zero without luck: R contains a message's emission if and only if it contains
its consumption. Assume that some report that touches the label is not in R, and take the first such report r in the
order of commits. By rule 2 of `substreams.py`, r has a cause:

- r consumes a message. Its emission was committed before r, so it is in R; then the consumption is in R too, which by
  rule 3 is r. Contradiction.
- r's node held the label before r. The report that took it is in R. Those of r's node in R are all that came before r
  and none after, because a node's reports are applied in their order: so in R the node holds the label. Then the label
  has not ended.
- r's node is a source that had not closed the label before r: by the same order, not in R either. Contradiction.

So if no node holds the label in R, nothing touching it is outside R, and nothing will be: the end is true. If some
do, whatever is not in R was done by them or by those below them; a holder with no holder above it can only hear from
its own cycle: `due` is true as well.

What the argument needs, each with its planted bug in the simulation (`tests/sim/test_substreams.py`):

1. A report is applied once, by its identity (XOR twice would undo it), and a node's reports in their order: `Heads`.
2. Closing is part of that order: one that comes before the node's last emission does not count yet.
3. The emission has to be matched by *its own* consumption: a count of messages instead would be zero too early when one
   emission and one unrelated consumption are missing. The count only comes on top, for false zeros and for readers.
4. Heads and XORs survive together: a state without its heads would take reports twice, heads without state never end.
   An agent that is told over a network acknowledges only what it has saved.

Tokens are kept by name and not as a number in the XOR: it comes to the same, and `waits_for` can say who holds what.
The agent's state is one plain value. Applied in the transaction that commits the manifest, it needs no messages of its
own; shards (`shard_of`, `split`) are agents of their own that share nothing, as all of the above is for one label.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b

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


@dataclass
class _Sum:
    """What is known of an open label."""

    number: int = 0
    emitted: int = 0
    consumed: int = 0
    holders: set[Node] = field(default_factory=set)
    closed: set[Node] = field(default_factory=set)  # sources

    @property
    def nothing_in_flight(self) -> bool:
        return self.number == 0 and self.emitted == self.consumed


@dataclass(frozen=True)
class Notice:
    """From the agent to a node: no row of the label can reach it any more, so it may end it."""

    label: str
    node: Node

    def to_json(self) -> Json:
        return {"end": self.label, "node": list(self.node)}


class Tracker:
    """The agent, or one shard of it.

    >>> from holdfast.protocols.substreams import Stage
    >>> tracker = Tracker(Graph({"in": Stage(), "out": Stage(("in",))}))
    >>> sent = Report(0, Node("in"), 0, -1, (Change("monday", number=0x2A, emitted=1, closed=True),))
    >>> tracker.apply(sent), tracker.apply(sent)
    (<Verdict.APPLIED: 'applied'>, <Verdict.KNOWN: 'known'>)
    >>> str(tracker.waits_for("monday"))
    '1 in flight'
    >>> tracker.apply(Report(0, Node("out"), 4, -1, (Change("monday", number=0x2A, consumed=1, holds=True),)))
    <Verdict.APPLIED: 'applied'>
    >>> tracker.ended("monday"), tracker.due("monday")
    (False, frozenset({Node(stage='out', task=0)}))
    >>> tracker.apply(Report(0, Node("out"), 5, 4, (Change("monday"),)))
    <Verdict.APPLIED: 'applied'>
    >>> tracker.ended("monday")
    True
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._heads = Heads()
        self._sums: dict[str, _Sum] = {}
        self._ended: dict[str, None] = {}

    def apply(self, report: Report) -> Verdict:
        """Take in what an epoch did, wholly or not at all."""
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
        """Holders that nothing can reach any more, but from within their own cycle."""
        known = self._sums.get(label)
        if known is None or not self._is_quiet(known):
            return frozenset()
        holding = {node.stage for node in known.holders}
        first = {stage for stage in holding if not self._is_below(stage, holding)}
        return frozenset(node for node in known.holders if node.stage in first)

    def notices(self, label: str) -> list[Notice]:
        """What an agent that is not asked sends to those who are due, until they have let go of the label."""
        return [Notice(label, node) for node in sorted(self.due(label))]

    def ended(self, label: str) -> bool:
        """Whether no row of the label is or will be anywhere. It does not change any more."""
        return label in self._ended

    def waits_for(self, label: str) -> Waiting:
        """Sources that have not closed it, messages in flight, and who holds it."""
        if label in self._ended:
            return Waiting()
        known = self._sums.get(label, _Sum())
        # While consumptions are known whose emissions are not, the count says too little; the XOR knows better.
        messages = 0 if known.nothing_in_flight else max(known.emitted - known.consumed, 1)
        open_at = self._graph.sources - known.closed
        return Waiting(tuple(sorted(open_at)), messages, tuple(sorted(known.holders)))

    def open_labels(self) -> tuple[str, ...]:
        return tuple(self._sums)

    def forget(self, label: str) -> None:
        """Drop the memory of a substream that has ended."""
        self._ended.pop(label, None)

    def to_json(self) -> Json:
        """All that it knows."""
        return {
            "heads": self._heads.to_json(),
            "ended": list(self._ended),
            "open": {
                label: {
                    "number": f"{known.number:016x}",
                    "emitted": known.emitted,
                    "consumed": known.consumed,
                    "holders": sorted(known.holders),
                    "closed": sorted(known.closed),
                }
                for label, known in self._sums.items()
            },
        }

    @classmethod
    def from_json(cls, graph: Graph, body: Json) -> Tracker:
        tracker = cls(graph)
        tracker._heads = Heads.from_json(body["heads"])
        tracker._ended = dict.fromkeys(body["ended"])
        tracker._sums = {
            label: _Sum(
                int(known["number"], 16),
                known["emitted"],
                known["consumed"],
                {Node(*node) for node in known["holders"]},
                {Node(*node) for node in known["closed"]},
            )
            for label, known in body["open"].items()
        }
        return tracker

    def _is_quiet(self, known: _Sum) -> bool:
        """Whether only a holder can still emit under the label."""
        return known.nothing_in_flight and len(known.closed) == len(self._graph.sources)

    def _is_below(self, stage: str, holding: Set[str]) -> bool:
        return any(self._graph.is_above(other, stage) for other in holding)

    def _check(self, report: Report, change: Change) -> None:
        """Refuse what breaks the rules that the argument rests on, before anything of the report is applied."""
        known = self._sums.get(change.label, _Sum())
        is_source = report.node in self._graph.sources
        if change.label in self._ended:
            raise refusal(report, f"it touches {change.label!r}, which has ended")
        if report.node in known.closed:
            raise refusal(report, f"it touches {change.label!r}, which this source has closed")
        if change.closed and not is_source:
            raise refusal(report, f"it closes {change.label!r}, and is no source")
        if is_source and (change.consumed or change.holds):
            raise refusal(
                report, f"it consumes or holds {change.label!r}, and is a source: it may only keep it open"
            )
        caused = is_source or change.consumed or report.node in known.holders
        if (change.emitted or change.holds) and not caused:
            raise refusal(report, f"it emits or holds {change.label!r} without having had any of it")

    def _change(self, node: Node, change: Change) -> None:
        known = self._sums.setdefault(change.label, _Sum())
        known.number ^= change.number
        known.emitted += change.emitted
        known.consumed += change.consumed
        if change.closed:
            known.closed.add(node)
        if change.holds:
            known.holders.add(node)
        else:
            known.holders.discard(node)
        if self._is_quiet(known) and not known.holders:
            del self._sums[change.label]
            self._ended[change.label] = None


def shard_of(label: str, shards: int) -> int:
    """Which shard of the agent keeps a label."""
    return int.from_bytes(blake2b(label.encode(), digest_size=8, person=b"shard").digest()) % shards


def split(report: Report, shards: int, last: Mapping[int, int]) -> dict[int, Report]:
    """A report as each shard gets it that has a label in it. `last` is the epoch that each shard was last told of.

    A shard that is not concerned is not told, so to it the node's next report follows an earlier epoch.

    >>> whole = Report(0, Node("in"), 3, 2, (Change("monday"), Change("friday")))
    >>> {shard: part.after for shard, part in sorted(split(whole, 2, {0: 1}).items())}
    {0: 1, 1: -1}
    """
    by_shard: dict[int, list[Change]] = {}
    for change in report.changes:
        by_shard.setdefault(shard_of(change.label, shards), []).append(change)
    return {
        shard: replace(report, after=last.get(shard, -1), changes=tuple(changes))
        for shard, changes in by_shard.items()
    }
