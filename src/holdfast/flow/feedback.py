"""Loops: a stream that is read before it is known whose rows it has."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.errors import PlanError
from holdfast.flow.flow import FlowDescription, Stream
from holdfast.flow.names import check_name
from holdfast.flow.nodes import Feedback


@dataclass(frozen=True, eq=False)
class FeedbackStream(Stream):
    """The rows that come back. Read it as any stream, and close it with what is to come back."""

    node: Feedback

    def close_with(self, stream: Stream) -> Stream:
        """Say whose rows come back, and go on with that stream.

        - `stream`: of the same flow. Its columns must be those of the loop's schema, which is checked before the flow runs.

        Raises `hf.PlanError` if it is of another flow, if nothing stands between it and the loop, or the loop is closed already.
        """
        name, loops = self.node.name, self.flow.loops
        if not isinstance(stream, Stream) or stream.flow is not self.flow:
            raise PlanError(
                f"feedback {name!r} is closed with {stream!r}, which is no stream of its flow",
                operation="describe",
            )
        if isinstance(stream.node, Feedback):
            raise PlanError(
                f"feedback {name!r} is closed with feedback {stream.node.name!r}: a loop must pass a stage",
                operation="describe",
                hint="Do something with the rows that come back: a union with a source, an agg, a transform with a filter.",
            )
        if loops[self.node] is not None:
            raise PlanError(
                f"feedback {name!r} is closed twice",
                operation="describe",
                hint="Close it once, with a union of all that is to come back.",
            )
        loops[self.node] = stream.node
        return stream


def feedback(flow: FlowDescription, name: str, schema: str) -> FeedbackStream:
    """Begin a loop of a flow."""
    check_name(name, "feedback")
    if any(loop.name == name for loop in flow.loops):
        raise PlanError(f"there are two feedbacks named {name!r}", operation="describe")
    node = Feedback(name, schema)
    flow.loops[node] = None
    return FeedbackStream(flow, node)
