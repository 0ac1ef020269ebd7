"""What is really so in a simulation of substreams, against which every answer of a tracker is held."""

from __future__ import annotations

from holdfast.protocols.message_numbers import Segment
from holdfast.protocols.substreams import Node
from sim.checker import Violation
from sim.substream_schedules import Schedule


class Truth:
    """What is unread, held and open, label by label."""

    def __init__(self, schedule: Schedule) -> None:
        self._graph = schedule.graph
        self.unread: dict[str, set[Segment]] = {label: set() for label in schedule.labels}
        self.held: dict[str, set[Node]] = {label: set() for label in schedule.labels}
        self.open = {label: set(schedule.scripts) for label in schedule.labels}
        self.ended: set[str] = set()
        self._above = {name: self._all_above(name) for name in schedule.graph.stages}

    def says_ended(self, label: str) -> None:
        for what, left in (("open at", self.open), ("unread", self.unread), ("held by", self.held)):
            if left[label]:
                raise Violation(f"{label} was said to have ended, and is {what} {sorted(left[label])}")
        self.ended.add(label)

    def says_due(self, label: str, node: Node) -> None:
        """Nothing outside the node's own cycle can reach it."""
        cycle = {name for name in self._above[node.stage] if node.stage in self._above[name]}
        above = self._above[node.stage] - cycle - {node.stage}
        if any(source.stage in above for source in self.open[label]):
            raise Violation(f"{label} was said to be due at {node}, and a source has it open")
        if any(holder.stage in above for holder in self.held[label]):
            raise Violation(f"{label} was said to be due at {node}, and {self.held[label]} hold it")
        for segment in self.unread[label]:
            comes = segment.reader == node and segment.sender.stage not in cycle
            if comes or segment.reader.stage in above:
                raise Violation(f"{label} was said to be due at {node}, and {segment} is unread")

    def touched(self, label: str, node: Node) -> None:
        if label in self.ended:
            raise Violation(f"{label} was said to have ended, and {node} has more of it")

    def _all_above(self, name: str) -> set[str]:
        reads = set(self._graph.stages[name].reads)
        while grown := {r for read in reads for r in self._graph.stages[read].reads} - reads:
            reads |= grown
        return reads
