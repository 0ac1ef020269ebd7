"""Flow and streams: the words in which a user describes a flow. Nothing here runs anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.duration import microseconds
from holdfast.core.errors import PlanError
from holdfast.flow import nodes, verbs
from holdfast.flow.door import dedup_at_the_door
from holdfast.flow.endpoints import SinkDescription, SourceDescription, check_sink, check_source
from holdfast.flow.grouped import GroupedStream
from holdfast.flow.habits import unknown_method
from holdfast.flow.joins import SIDES, matching_of
from holdfast.flow.policies import Policy, check_policy, default_policy
from holdfast.flow.settings import check_settings
from holdfast.flow.stateful import own_operator
from holdfast.flow.substreams import XOR, labelling_of, waits_for_end
from holdfast.flow.windows import event_time

if TYPE_CHECKING:
    from holdfast.flow.feedback import FeedbackStream
    from holdfast.flow.nodes import Node, Stateful, Transformation
    from holdfast.flow.own import Final, Update

# A stage's ports: its results, rows that came too late, rows from too far in the future.
OUT, LATE, QUARANTINE = "out", "late", "quarantine"

# From where a stage that is new to a work directory reads what was there before it.
OLDEST, NOW = "oldest", "now"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def port_of(port: str, side: int) -> str:
    """The port by which rows of a side go another way: a join's right side has ports of its own."""
    return port if side == 0 else f"{port}_right"


def side_of(port: str) -> int:
    """The side whose rows go by a port."""
    return 1 if port.endswith("_right") else 0


def check_name(name: str, what: str) -> str:
    """Names become parts of file names, so their letters are few."""
    if not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot name a {what}",
            operation="describe",
            hint="Use letters, digits, '_', '-' and '.', starting with a letter or digit.",
        )
    return name


class FlowDescription:
    """A flow as a graph of streams with sinks attached."""

    def __init__(
        self,
        name: str,
        *,
        guarantee: str = "exactly_once",
        survives: str = "power",
        recover: Policy | None = None,
        replica: str | None = None,
        tracker: str = XOR,
        trigger: str | None = None,
    ) -> None:
        self.name = check_name(name, "flow")
        check_settings(guarantee, survives, tracker, replica)
        self.guarantee = guarantee
        self.survives = survives
        self.replica = replica
        self.tracker = tracker
        self.trigger_us = None if trigger is None else microseconds(trigger, "trigger")
        self.default_policy = default_policy(survives) if recover is None else check_policy(recover)
        self.policies: dict[Node, Policy] = {}
        self.starts: dict[Node, str] = {}
        self.placed: list[tuple[str, Node | str]] = []
        self.sinks: list[tuple[Node, str, SinkDescription]] = []
        self.names: dict[Node, str] = {}
        self.stateful: list[Node] = []
        self.loops: dict[nodes.Feedback, Node | None] = {}  # what closes each
        self._sources: dict[str, nodes.Source] = {}

    def source(
        self,
        name: str,
        description: SourceDescription,
        *,
        ids: str | Sequence[str] | None = None,
        time: str | None = None,
        within: str | None = None,
    ) -> Stream:
        """Add a source of rows.

        `ids` are columns by which a row that comes again is known: each id goes through once, ever, or, with `time` and
        `within`, once a span of event time. The stage that sees to it is called `NAME-ids`.
        """
        check_name(name, "source")
        check_source(description)
        if name in self._sources:
            raise PlanError(f"there are two sources named {name!r}", operation="describe")
        node = nodes.Source(name, description)
        self._sources[name] = node
        dedup = dedup_at_the_door(node, ids, time, within)
        if dedup is None:
            return Stream(self, node)
        return Stream(self, node)._stateful(dedup).named(f"{name}-ids")

    def feedback(self, name: str, *, schema: str) -> FeedbackStream:
        """Begin a loop: a stream to read as any other, whose rows are those of the stream that it is closed with."""
        from holdfast.flow.feedback import feedback

        return feedback(self, name, schema)

    def place(self, group: str, *stages: Stream | str) -> None:
        """Run stages in a worker process of their own, called `group`; those not placed are in the group "main".

        A stage is given by its name, or as the stream that it makes.
        """
        check_name(group, "group")
        if not stages:
            raise PlanError(f"place({group!r}) names no stage", operation="describe")
        for stage in stages:
            if not isinstance(stage, Stream | str) or (isinstance(stage, Stream) and stage.flow is not self):
                raise PlanError(
                    f"place takes stages of this flow, not {stage!r}",
                    operation="describe",
                    hint="Give streams of this flow, or the names of its stages.",
                )
            self.placed.append((group, stage.node if isinstance(stage, Stream) else stage))


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows on their way: transform them, group them, join them with others, send them to a sink."""

    flow: FlowDescription
    node: Node

    def transform(self, function: Transformation) -> Stream:
        """Apply any stateless `DataFrame -> DataFrame` function."""
        if not callable(function) and not isinstance(function, verbs.Verb):
            raise PlanError(f"transform needs a function, not {function!r}", operation="describe")
        return Stream(self.flow, nodes.Transform(self.node, function))

    def where(self, condition: str) -> Stream:
        """Keep the rows for which a condition in SQL is true; `filter` is the same."""
        return self.transform(verbs.where(condition))

    filter = where

    def select(self, *expressions: str, **named: str) -> Stream:
        """Go on with these columns only: names, `*`, expressions in SQL, and expressions by the name of their column."""
        return self.transform(verbs.select(expressions, named))

    def with_column(self, name: str, expression: str) -> Stream:
        """Add a column, an expression in SQL, or replace the one of that name."""
        return self.transform(verbs.with_columns({name: expression}))

    def with_columns(self, columns: Mapping[str, str] = MappingProxyType({}), /, **named: str) -> Stream:
        """Add or replace columns, each an expression in SQL of the columns that were there before."""
        return self.transform(verbs.with_columns({**columns, **named}))

    def drop(self, *columns: str) -> Stream:
        """Leave columns out; one that is not there is an error."""
        return self.transform(verbs.drop(columns))

    def rename(self, names: Mapping[str, str] = MappingProxyType({}), /, **named: str) -> Stream:
        """Give columns other names: `rename(old="new")`, or a dict; one that is not there is an error."""
        return self.transform(verbs.rename({**names, **named}))

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and of others, columns matched by name."""
        if not others or any(getattr(other, "flow", None) is not self.flow for other in others):
            raise PlanError("a union takes other streams of the same flow", operation="describe")
        return Stream(self.flow, nodes.Union((self.node, *(other.node for other in others))))

    def as_rows(self) -> Stream:
        """Say that every change is meant as a row of its own, on a stream whose rows replace rows.

        A running aggregate, and windows with `emit="updates"`, give a key in every epoch that changes it. An aggregate,
        dedup, join or substream behind them would count each change, and is refused unless this is said.
        """
        return Stream(self.flow, nodes.AsRows(self.node))

    def group_by(self, *keys: str, emit: str = "updates") -> GroupedStream:
        """Group rows by key columns; null is a key like any other. Without columns all rows are one group.

        `emit="updates"` gives a key in every epoch that changes it. `emit="end"`, for keys with `"substream"` among
        them, gives each once, when its substream has ended.
        """
        if len(set(keys)) != len(keys):
            raise PlanError(f"group_by names a column twice: {', '.join(keys)}", operation="describe")
        return GroupedStream(self, keys, at_end=waits_for_end(keys, emit))

    def named(self, name: str) -> Stream:
        """Name the stage that makes this stream: its state is found again under this name."""
        check_name(name, "stage")
        taken = [node for node, other in self.flow.names.items() if other == name and node is not self.node]
        if taken:
            raise PlanError(f"there are two stages named {name!r}", operation="describe")
        self.flow.names[self.node] = name
        return self

    def recover(self, policy: Policy) -> Stream:
        """Choose how the stage that makes this stream comes back after a failure."""
        self.flow.policies[self.node] = check_policy(policy)
        return self

    def read_from(self, where: str) -> Stream:
        """Say from where the stage that makes this stream reads if it is added to a flow that has run before.

        `"oldest"`, the default: from the oldest rows that are still kept, and of a source all of them. `"now"`: only what comes
        after it was added. What it has not seen is said when it first runs. A stage that is known already reads on
        from where it stood.
        """
        if where not in (OLDEST, NOW):
            raise PlanError(
                f"a stage cannot read from {where!r}",
                operation="describe",
                hint=f"Say read_from({OLDEST!r}) or read_from({NOW!r}).",
            )
        self.flow.starts[self.node] = where
        return self

    def to(self, sink: SinkDescription) -> Stream:
        """Send the rows to a sink, and go on with the same stream."""
        return self._send(self.node, OUT, sink)

    def dedup(self, *ids: str, time: str, within: str, max_ahead: str | None = None) -> Stream:
        """Let a row through unless its id was accepted within `within` of it, by event time.

        Rows more than `within` behind the newest are late: whether they are repeats can no longer be told.
        """
        if not ids:
            raise PlanError("dedup needs at least one id column", operation="describe")
        if len(set(ids)) != len(ids):
            raise PlanError(f"dedup names a column twice: {', '.join(ids)}", operation="describe")
        within_us = microseconds(within, "within")
        node = nodes.Dedup(self.node, ids, within_us, event_time(time, within_us, max_ahead))
        return self._stateful(node)

    def substream(
        self,
        *,
        by: str | None = None,
        closed_when: str | None = None,
        remember: str | None = None,
        time: str | None = None,
        every: str | None = None,
        late: str | None = None,
        max_ahead: str | None = None,
    ) -> Stream:
        """Label every row with a substream, in a column of that name; Holdfast knows when one has ended.

        With `time` and `every` the label is the start of the window of event time that the row is in, after the SQL
        expression `by` if there is one; the window's end closes it, when the watermark reaches it. Without `time` the
        label is `by`, and the epoch with a row for which the SQL expression `closed_when` is true closes it; rows that
        come for it within `remember` ("7 days") after that are late. Draining closes all. Rows without a label are late.
        """
        labelling, judged = labelling_of(by, time, every, late, closed_when, remember, max_ahead)
        return self._stateful(nodes.Substream(self.node, labelling, judged))

    def stateful(
        self,
        function: Update,
        *,
        by: Sequence[str],
        state: str,
        output: str,
        time: str | None = None,
        late: str = "0 seconds",
        order_by: str | Sequence[str] = (),
        expire_after: str | None = None,
        max_ahead: str | None = None,
        on_end: Final | None = None,
    ) -> Stream:
        """Run a function of your own on the rows of an epoch and the state of their keys.

        `function(rows, state, context) -> (new_state, output)` gets pyarrow Tables of all keys of a hash range at once:
        the epoch's rows, by key and then by `order_by`, and the state that those keys have, with the columns of `by`
        and of `state`. It returns the state of those keys, and rows with the columns of `output`. Keys that it leaves
        out of the state are deleted. A key expires when nothing of it came for `expire_after`, by the event time
        `time`, or without one by the clock; `context.expired` shows those that did. `on_end(state, context) -> output`
        is given the state of the keys of a substream that has ended, once, and they are deleted; `"substream"` is then
        in `by`. `hf.each_key` makes such a function of one that treats a key at a time, slowly.
        """
        node = own_operator(
            self.node, function, by, state, output, time, late, order_by, expire_after, max_ahead, on_end
        )
        return self._stateful(node)

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
        """Pair each row with the rows of another stream that have its key and a time near its own.

        `within` bounds `right time - left time`, both bounds included. The output has the keys once, then the
        other columns of the left and of the right; names that both have get the suffixes. With `how="left"`
        a row without a partner leaves once, with nulls, when none can come any more.
        """
        if not isinstance(right, Stream) or right.flow is not self.flow:
            raise PlanError("a join takes two streams of one flow", operation="describe")
        matching = matching_of(on, time, within, late, suffixes, how, max_ahead)
        return self._stateful(nodes.Join(self.node, right.node, matching))

    def late_to(self, sink: SinkDescription, side: str | None = None) -> Stream:
        """Send rows that came too late, and rows without an event time or a label, to a sink with all their columns.

        The two sides of a join have different columns, so there `side` is "left" or "right".
        """
        return self._side(LATE, sink, side)

    def quarantine_to(self, sink: SinkDescription, side: str | None = None) -> Stream:
        """Send rows that were set aside to a sink.

        Behind a step with `max_ahead` these are rows from beyond it, with all their columns; of a join, those of one
        `side`. Behind a source with `on_error="quarantine"` they are what could not be read: the file, the row, and
        the reason.
        """
        source = nodes.source_at(self.node)
        if source is not None:
            return self._malformed(sink, source)
        return self._side(QUARANTINE, sink, side)

    if not TYPE_CHECKING:  # a type checker knows by itself what a stream does not have

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(unknown_method(name, dir(type(self))), name=name)

    def _side(self, port: str, sink: SinkDescription, side: str | None) -> Stream:
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

    def _malformed(self, sink: SinkDescription, source: nodes.Source) -> Stream:
        if not source.description.quarantines:
            raise PlanError(
                f"source {source.name!r} sets nothing aside: what it cannot read stops the flow",
                operation="describe",
                hint='Give hf.files on_error="quarantine".',
            )
        return self._send(source, QUARANTINE, sink)

    def _send(self, node: Node, port: str, sink: SinkDescription) -> Stream:
        check_sink(sink)
        self.flow.sinks.append((node, port, sink))
        return self

    def _stateful(self, node: Stateful) -> Stream:
        self.flow.stateful.append(node)
        return Stream(self.flow, node)
