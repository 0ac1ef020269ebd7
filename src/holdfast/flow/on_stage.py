"""What is said of the stage that makes a stream: its name, how it recovers, where it begins to read, where its rows go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.endpoints import SinkDescription, check_sink
from holdfast.flow.joins import SIDES
from holdfast.flow.names import check_name
from holdfast.flow.policies import Policy, check_policy
from holdfast.flow.ports import LATE, OUT, QUARANTINE, port_of

if TYPE_CHECKING:
    from holdfast.flow.flow import FlowDescription
    from holdfast.flow.nodes import Node

# From where a stage that is new to a work directory reads what was there before it.
OLDEST, NOW = "oldest", "now"


@dataclass(frozen=True, eq=False)
class OnStage:
    """A stream as the output of the stage that makes it. All that is said of it gives the stream itself."""

    flow: FlowDescription
    node: Node

    def named(self, name: str) -> Self:
        """Name the stage that makes this stream: its state is found again under this name, also when the flow was edited.

        - `name`: letters, digits, `_`, `-` and `.`, at most 100, unique in the flow. Without one, stages are named after what they do.

        Raises `hf.PlanError` if another stage has that name, or it has other characters.
        """
        check_name(name, "stage")
        taken = [node for node, other in self.flow.names.items() if other == name and node is not self.node]
        if taken:
            raise PlanError(f"there are two stages named {name!r}", operation="describe")
        self.flow.names[self.node] = name
        return self

    def recover(self, policy: Policy) -> Self:
        """Choose how the stage that makes this stream comes back after a failure.

        - `policy`: what `hf.no_sync`, `hf.active_standby` and the like give. Without it, the flow's `recover=` holds.

        Raises `hf.PlanError` if it is no policy. Whether the stage can have it is checked when the flow is planned.
        """
        self.flow.policies[self.node] = check_policy(policy)
        return self

    def read_from(self, where: str) -> Self:
        """Say from where the stage that makes this stream reads if it is added to a flow that has run before.

        - `where`: `"oldest"`, what a stage does that was told nothing: from the oldest rows that are still kept, and of a source
          all of them. `"now"`: only what comes after it was added.

        What it has not seen is said when it first runs. A stage that is known already reads on from where it stood.

        Raises `hf.PlanError` if it is neither of these.
        """
        if where not in (OLDEST, NOW):
            raise PlanError(
                f"a stage cannot read from {where!r}",
                operation="describe",
                hint=f"Say read_from({OLDEST!r}) or read_from({NOW!r}).",
            )
        self.flow.starts[self.node] = where
        return self

    def to(self, sink: SinkDescription) -> Self:
        """Send the rows to a sink, and go on with the same stream, which may have more of them.

        - `sink`: what `hf.parquet`, `hf.table` and the like give.

        Raises `hf.PlanError` if it is no sink, such as a path.
        """
        return self._send(self.node, OUT, sink)

    def late_to(self, sink: SinkDescription, side: str | None = None) -> Self:
        """Send rows that came too late, and rows without an event time or a label, to a sink with all their columns.

        - `sink`: as for `stream.to`. Without one, such rows are counted and let go.
        - `side`: behind a join `"left"` or `"right"`, because the two have different columns; elsewhere None, the default.

        Raises `hf.PlanError` behind a step that does not judge event time, and if there is no such side.
        """
        return self._side(LATE, sink, side)

    def quarantine_to(self, sink: SinkDescription, side: str | None = None) -> Self:
        """Send rows that were set aside to a sink.

        Behind a step with `max_ahead` these are rows from beyond it, with all their columns. Behind a source with
        `on_error="quarantine"` they are what could not be read: the file, the row, and the reason.

        - `sink`: as for `stream.to`. Without one, such rows are counted and let go.
        - `side`: as for `stream.late_to`; None by default.

        Raises `hf.PlanError` where nothing is set aside, and if there is no such side.
        """
        source = nodes.source_at(self.node)
        if source is not None:
            return self._malformed(sink, source)
        return self._side(QUARANTINE, sink, side)

    def _side(self, port: str, sink: SinkDescription, side: str | None) -> Self:
        time = nodes.time_of(self.node)
        if time is None and not (port == LATE and isinstance(self.node, nodes.Substream)):
            raise PlanError(
                f"this stream has no port {port!r}: what makes it does not judge event time",
                operation="describe",
                hint="Call it right behind a window's agg, a dedup, a join, a substream, or a stateful with time=.",
            )
        if port == QUARANTINE and (time is None or time.max_ahead_us is None):
            raise PlanError(
                "nothing is quarantined here: there is no max_ahead",
                operation="describe",
                hint='Give that step max_ahead="1 day" or the like.',
            )
        sides = SIDES if isinstance(self.node, nodes.Join) else (None,)
        if side not in sides:
            raise PlanError(
                f"side={side!r} is not one of the sides of this stream",
                operation="describe",
                hint='Behind a join, say side="left" or side="right"; elsewhere there are no sides.',
            )
        return self._send(self.node, port_of(port, sides.index(side)), sink)

    def _malformed(self, sink: SinkDescription, source: nodes.Source) -> Self:
        if not source.description.quarantines:
            raise PlanError(
                f"source {source.name!r} sets nothing aside: what it cannot read stops the flow",
                operation="describe",
                hint='Give hf.files on_error="quarantine".',
            )
        return self._send(source, QUARANTINE, sink)

    def _send(self, node: Node, port: str, sink: SinkDescription) -> Self:
        check_sink(sink)
        self.flow.sinks.append((node, port, sink))
        return self
