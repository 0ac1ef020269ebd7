"""The part of a stream that joins it with another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.joins import matching_of

if TYPE_CHECKING:
    from holdfast.flow.flow import FlowDescription, Stream
    from holdfast.flow.nodes import Node, Stateful


class Joining:
    """What a stream inherits."""

    if TYPE_CHECKING:
        flow: FlowDescription
        node: Node

        def _stateful(self, node: Stateful) -> Stream: ...

    def join(
        self,
        right: Stream,
        *,
        on: str | Sequence[str],
        time: tuple[str, str],
        within: tuple[str, str],
        late: str = "0 seconds",
        suffixes: tuple[str, str] = ("", "_right"),
        how: str = "inner",
        max_ahead: str | None = None,
    ) -> Stream:
        """Join each row with the rows of another stream that have its key and a time near its own.

        - `right`: the other stream, of the same flow; it may be this one.
        - `on`: the key, a column or several, which both streams have under the same name and with the same type. A key
          that holds a null has no partner; NaN equals NaN, and -0.0 equals 0.0.
        - `time`: the column of event time on the left, and that on the right.
        - `within`: the bounds of `right time - left time`, both included, the smaller one first:
          `("-1 minute", "30 minutes")`.
        - `late`: how far a row may lie behind the newest row and still be on time; by default not at all. Rows behind that
          leave by `late_to(sink, side=...)`.
        - `suffixes`: what columns other than the keys get behind their names if both streams have them; by default
          nothing on the left and `_right` on the right.
        - `how`: `"inner"`, the default, gives every pair once. `"left"`, `"right"` and `"full"` give a row of that side,
          or of either, once with nulls if it finds no partner, when none can come any more. `"semi"` gives a left row once, as
          soon as it has a partner, and `"anti"` a left row that has none, when none can come any more; both with the
          columns of the left alone. Spark's other names (`"left_outer"`, `"outer"`, `"leftanti"`) mean the same.
        - `max_ahead`: how far in the future of the clock a time may lie; rows beyond it leave by `quarantine_to(sink, side=...)`.
          By default there is no such bound.

        The output has the keys once, then the other columns of the left and of the right. Raises `PlanError` for an
        argument that makes no sense here: another `how`, an empty span, a stream of another flow.
        """
        if getattr(right, "flow", None) is not self.flow:
            raise PlanError("a join takes two streams of one flow", operation="describe")
        matching = matching_of(on, time, within, late, suffixes, how, max_ahead)
        return self._stateful(nodes.Join(self.node, right.node, matching))
