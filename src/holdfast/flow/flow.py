"""Flow and streams: the words in which a user describes a flow. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.duration import microseconds
from holdfast.core.errors import PlanError
from holdfast.flow import nodes, verbs
from holdfast.flow.door import dedup_at_the_door
from holdfast.flow.endpoints import SinkDescription, SourceDescription, check_source
from holdfast.flow.grouped import GroupedStream
from holdfast.flow.habits import unknown_method
from holdfast.flow.joining import Joining
from holdfast.flow.names import check_name
from holdfast.flow.on_stage import OnStage
from holdfast.flow.policies import Policy, check_policy, default_policy
from holdfast.flow.settings import check_settings
from holdfast.flow.stateful import own_operator
from holdfast.flow.steps import RowSteps
from holdfast.flow.substreams import XOR, labelling_of, waits_for_end
from holdfast.flow.windows import event_time

if TYPE_CHECKING:
    from holdfast.flow.enrichment import TableSpec
    from holdfast.flow.feedback import FeedbackStream
    from holdfast.flow.nodes import Node, Stateful, Transformation
    from holdfast.flow.own import Final, Update


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
        self.tables: dict[str, TableSpec] = {}  # that streams are enriched with
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

        - `name`: of the source, unique in the flow; `holdfast status` shows it.
        - `description`: what `hf.files`, `hf.kafka` and the like give.
        - `ids`: a column, or several, by which a row that comes again is known: each id goes through once, ever. By default
          rows are not compared. The stage that sees to it is called `NAME-ids`.
        - `time`, `within`: a column of event time and a duration, both or none: each id goes through once within it, and no more
          has to be remembered. None by default.

        Raises `hf.PlanError` if the name is taken, if `description` is no source, and if one of `time` and `within` is missing.

        >>> import holdfast as hf
        >>> flow = hf.Flow("shop")
        >>> files = hf.files("in/", schema="id string, amount double, ts timestamp")
        >>> orders = flow.source("orders", files, ids="id", time="ts", within="1 hour")
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
        """Begin a loop: a stream to read as any other, whose rows are those of the stream that it is closed with.

        - `name`: of the loop, unique in the flow.
        - `schema`: the columns that come back, as Spark SQL text.

        Raises `hf.PlanError` if the name is taken. A loop that is not closed is an error when the flow is planned.
        """
        from holdfast.flow.feedback import feedback

        return feedback(self, name, schema)

    def place(self, group: str, *stages: Stream | str) -> None:
        """Run stages in a worker process of their own. Those that are not placed are in the group `main`.

        - `group`: the name of the process.
        - `stages`: names of stages, or the streams that they make.

        Raises `hf.PlanError` if there is none, or one is no stream of this flow. A name that no stage has, and a stage that is
        placed twice, are errors when the flow is planned.
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
class Stream(RowSteps, Joining, OnStage):
    """Rows on their way: transform them, group them, join them with others, send them to a sink."""

    def transform(self, function: Transformation) -> Stream:
        """Apply any stateless function.

        - `function`: takes a DataFrame and gives one. It may do what treats rows one by one; a sort, an aggregate, a limit or a
          join of its rows with each other is refused before the flow runs.

        Raises `hf.PlanError` if it is no function.

        >>> import holdfast as hf
        >>> lines = hf.Flow("words").source("lines", hf.rows([{"line": "to be or not to be"}]))
        >>> words = lines.transform(lambda df: df.selectExpr("explode(split(line, ' ')) AS word"))
        """
        if not callable(function) and not isinstance(function, verbs.Verb):
            raise PlanError(f"transform needs a function, not {function!r}", operation="describe")
        return Stream(self.flow, nodes.Transform(self.node, function))

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and of others.

        - `others`: streams of the same flow. Columns are matched by name, and must have the same types.

        Raises `hf.PlanError` if there is none, or one is of another flow.
        """
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
        """Group rows by key columns, for `grouped.agg` or `grouped.window`. Null is a key like any other.

        - `keys`: names of columns. Without any, all rows are one group.
        - `emit`: `"updates"`, the default, gives a key in every epoch that changes it. `"end"`, for keys with `"substream"` among
          them, gives each once, when its substream has ended.

        Raises `hf.PlanError` if a column is named twice, or `emit` cannot be.

        >>> import holdfast as hf
        >>> orders = hf.Flow("shop").source("orders", hf.rows([{"user": "x", "amount": 5}]))
        >>> totals = orders.group_by("user").agg(total=hf.sum("amount"), n=hf.count())
        """
        if len(set(keys)) != len(keys):
            raise PlanError(f"group_by names a column twice: {', '.join(keys)}", operation="describe")
        return GroupedStream(self, keys, at_end=waits_for_end(keys, emit))

    def dedup(self, *ids: str, time: str, within: str, max_ahead: str | None = None) -> Stream:
        """Let a row through unless its id was accepted within a span of event time around it.

        - `ids`: the columns that make the id.
        - `time`: the column of event time.
        - `within`: the span, a duration. Rows that are further behind the newest are late: whether they are repeats can no
          longer be told.
        - `max_ahead`: rows further in the future of the clock are set aside; by default none are.

        Raises `hf.PlanError` if there is no id column, one is named twice, or a duration cannot be read.

        >>> import holdfast as hf
        >>> files = hf.files("in/", schema="id string, ts timestamp")
        >>> unique = hf.Flow("shop").source("orders", files).dedup("id", time="ts", within="1 hour")
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
        """Label every row with a substream, in a column of that name. Holdfast knows when one has ended.

        With `time` the label is the start of the window of event time that the row is in; the watermark closes it when it reaches
        the window's end. Without `time` the label is `by`. Draining closes all. Rows without a label are late.

        - `by`: a SQL expression, the label, or with `time` what stands before it. None by default.
        - `closed_when`: without `time`, a SQL expression: the epoch with a row for which it is true closes the label. By default
          only draining does.
        - `remember`: without `time`, how long rows of a closed label are known to be late; `"7 days"` if not told.
        - `time`, `every`: the column of event time, and the length of the windows, in whole seconds.
        - `late`: how far behind the newest row the watermark stays; `"0 seconds"` if not told.
        - `max_ahead`: rows further in the future of the clock are set aside; by default none are.

        Raises `hf.PlanError` if neither `by` nor `time` is given, if options do not go together, or a duration cannot be read.

        >>> import holdfast as hf
        >>> orders = hf.Flow("shop").source("orders", hf.files("in/", schema="user string, ts timestamp"))
        >>> hours = orders.substream(time="ts", every="1 hour", late="10 minutes")
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

        - `function`: `function(rows, state, context) -> (new_state, output)`. It gets pyarrow Tables of all keys of a hash range at
          once: the epoch's rows, by key, and the state that those keys have, with the columns of `by` and of `state`. It
          returns the state of those keys, and rows of output. Keys that it leaves out of the state are deleted. `hf.each_key` makes
          such a function of one that treats a key at a time, slowly.
        - `by`: the key columns.
        - `state`, `output`: the columns of each, as Spark SQL text.
        - `time`, `late`: the column of event time, None by default, and how far behind the newest row the watermark stays.
        - `order_by`: columns by which the rows of a key are ordered; none by default. Rows that are equal in them come in a
          fixed order, the same in every replay.
        - `expire_after`: a key expires when nothing of it came for so long, by `time`, or without one by the clock;
          `context.expired` shows those that did. By default none expire.
        - `max_ahead`: rows further in the future of the clock are set aside; by default none are.
        - `on_end`: `on_end(state, context) -> output` is given the state of the keys of a substream that has ended, once, and they are
          deleted; `"substream"` is then in `by`. None by default.

        Raises `hf.PlanError` if `function` is none, a column is named twice, options do not go together, or a duration cannot be
        read. What the function itself raises stops the flow with a `hf.CodeError`.
        """
        node = own_operator(
            self.node, function, by, state, output, time, late, order_by, expire_after, max_ahead, on_end
        )
        return self._stateful(node)

    if not TYPE_CHECKING:  # a type checker knows by itself what a stream does not have

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(unknown_method(name, dir(type(self))), name=name)

    def _stateful(self, node: Stateful) -> Stream:
        self.flow.stateful.append(node)
        return Stream(self.flow, node)
