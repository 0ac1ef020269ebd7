"""Follows the columns of a flow from its sources on, without Spark, as far as they are certain.

Behind code of the user's, an expression in SQL without a name, or a source that does not declare its columns, only Spark
knows: nothing is said there. What is said here, Spark would say too, once it has been started.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import enrichment, nodes, verbs
from holdfast.flow.ddl import columns_of
from holdfast.flow.endpoints import FilesSource, RowsSource, SourceDescription
from holdfast.flow.generate import GenerateSource
from holdfast.flow.joins import ASKING, SIDES
from holdfast.flow.kafka import KafkaSource
from holdfast.flow.nodes import Stateful, Transformation
from holdfast.flow.ports import OUT, QUARANTINE
from holdfast.flow.prefixes import Apply, Concat, Input, Prefix, Read
from holdfast.flow.streams import StreamSource
from holdfast.flow.substreams import SUBSTREAM
from holdfast.flow.table_sink import TableSink
from holdfast.flow.windows import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from holdfast.flow.flow_plan import FlowPlan, StageSpec

# The names of columns in order; None where only Spark knows them.
Names = tuple[str, ...] | None

_PLAIN = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s*", re.ASCII)
_NAMED = re.compile(r".*\bas\s+(?:`([^`]+)`|([A-Za-z_]\w*))\s*", re.ASCII | re.IGNORECASE | re.DOTALL)
_WITHOUT_BRACKETS = re.compile(r"(current|local|session)_?\w+|user|true|false|null|now", re.IGNORECASE)
# As binding says it: what is told early is told in the same words.
_KEY, _TIME = "there is no column {} to group by", "there is no time column {}"
# What rows that a source has set aside have.
_ASIDE = ("file", "row", "reason")


def declared(name: str, description: SourceDescription) -> Names:
    """The columns that a source declares; an error if what it declares cannot be read."""
    what = f"source {name!r}"
    match description:
        case FilesSource(schema=None):
            return None
        case FilesSource(schema=schema) | GenerateSource(schema=schema) | StreamSource(schema=schema):
            return columns_of(what, schema).names
        case KafkaSource(schema=str(schema)):
            names = columns_of(what, schema).names
            return None if description.metadata or description.headers else names
        case RowsSource(table=table):
            return tuple(table.column_names)
        case _:
            return None


def check(plan: FlowPlan) -> None:
    """Raise for every column that a flow names and that is certain not to be there, all at once."""
    found = _Following()
    known: dict[Input, Names] = {}
    for name, description in plan.sources.items():
        known[Input("source", name)] = declared(name, description)
        known[Input("source", name, QUARANTINE)] = _ASIDE
    for loop in plan.loops:
        known[Input("channel", loop.stage, OUT)] = columns_of(f"loop {loop.name!r}", loop.schema).names
    for stage in plan.stages:
        known[Input("channel", stage.name, OUT)] = found.of_stage(stage, known)
    for sink in plan.sinks:
        if isinstance(sink.description, TableSink):
            keys = sink.description.key or ()
            words = f"hf.table has key={list(keys)}, but there is no column {{}}"
            found.need(sink.stage, words, keys, known.get(sink.input))
    found.raise_any()


@dataclass
class _Following:
    """What was found to be missing so far."""

    wrong: list[tuple[str, str]] = field(default_factory=list)  # stage, and what is wrong in it
    meant: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)

    def raise_any(self) -> None:
        if not self.wrong:
            return
        stages = {stage for stage, _ in self.wrong}
        told = [what if len(stages) == 1 else f"stage {stage!r}: {what}" for stage, what in self.wrong]
        raise PlanError(
            "; ".join(dict.fromkeys(told)),
            operation="plan",
            stage=stages.pop() if len(stages) == 1 else None,
            hint=" ".join(dict.fromkeys([*self.meant, *self.there])),
        )

    def need(self, stage: str, what: str, names: Iterable[str], there: Names) -> None:
        """Note the names that are not there, in words with a place for the name; of a step, its name will do.

        A dot may lead into a struct, and is left to Spark.
        """
        words = what if "{}" in what else f"{what} names the column {{}}, which is not there"
        if there is None:
            return
        lower = {name.lower(): name for name in there}
        for name in names:
            if name.lower() in lower or "." in name:
                continue
            like = difflib.get_close_matches(name.lower(), lower, n=1)
            self.wrong.append((stage, words.replace("{}", repr(name))))
            self.meant += [f"Did you mean {lower[like[0]]!r} for {name!r}?"] if like else []
            self.there.append(f"The columns are {', '.join(there)}.")

    def of_stage(self, stage: StageSpec, known: dict[Input, Names]) -> Names:
        """What a stage gives."""
        sides = [self._prefix(stage.name, prefix, known) for prefix in stage.sides]
        if stage.operator is None:
            return sides[0]
        if isinstance(stage.operator, nodes.Join):
            return self._join(stage.name, stage.operator, sides)
        return self._operator(stage.name, stage.operator, sides[0])

    def _prefix(self, stage: str, prefix: Prefix, known: dict[Input, Names]) -> Names:
        match prefix:
            case Read(input=origin):
                return known.get(origin)
            case Apply(child=child, function=function):
                return self._step(stage, function, self._prefix(stage, child, known))
            case Concat(children=children):
                return self._union(stage, [self._prefix(stage, child, known) for child in children])

    def _union(self, stage: str, sides: Sequence[Names]) -> Names:
        first = sides[0]
        for number, other in enumerate(sides[1:], 2):
            if first is None or other is None:
                return None
            self.need(
                stage, f"stream {number} of a union has no column {{}}, which the first has", first, other
            )
            self.need(
                stage,
                f"the first stream of a union has no column {{}}, which stream {number} has",
                other,
                first,
            )
        return first

    def _step(self, stage: str, step: Transformation, there: Names) -> Names:
        match step:
            case verbs.Where(condition=condition):
                self.need(stage, "where", _plain([condition]), there)
                return there
            case verbs.Select(expressions=expressions):
                self.need(stage, "select", _plain(expressions), there)
                return _selected(expressions, there)
            case verbs.WithColumns(columns=columns):
                self.need(stage, "with_columns", _plain([text for _, text in columns]), there)
                return there and _with(there, [name for name, _ in columns])
            case verbs.Drop(columns=dropped):
                self.need(stage, "drop", dropped, there)
                return there and tuple(name for name in there if name.lower() not in _lower(dropped))
            case verbs.Rename(names=names):
                self.need(stage, "rename", [old for old, _ in names], there)
                new = {old.lower(): name for old, name in names}
                return there and tuple(new.get(name.lower(), name) for name in there)
            case enrichment.Enrich(on=on):
                self.need(stage, "enrich", [mine for mine, _ in on], there)
                return None
            case _:
                return None

    def _operator(self, stage: str, operator: Stateful, there: Names) -> Names:
        time = nodes.time_of(operator)
        if time is not None:
            self.need(stage, _TIME, [time.column], there)
        match operator:
            case nodes.RunningAggregate() | nodes.WindowAggregate():
                self.need(stage, _KEY, operator.keys, there)
                for name, aggregate in operator.aggregates:
                    self.need(stage, f"agg({name}=...)", _plain(aggregate.written), there)
                window = (WINDOW_START, WINDOW_END) if isinstance(operator, nodes.WindowAggregate) else ()
                return (*operator.keys, *window, *(name for name, _ in operator.aggregates))
            case nodes.Dedup(ids=ids):
                self.need(stage, _KEY, ids, there)
                return there
            case nodes.OwnOperator(by=by, order_by=order_by, output=output):
                self.need(stage, _KEY, by, there)
                self.need(stage, "there is no column {} to order by", order_by, there)
                return columns_of(f"the output of stage {stage!r}", output).names if output.strip() else None
            case nodes.Substream():
                return there and (*there, SUBSTREAM)
            case _:
                return None

    def _join(self, stage: str, join: nodes.Join, sides: Sequence[Names]) -> Names:
        matching = join.matching
        for side, there, time in zip(SIDES, sides, matching.times, strict=True):
            self.need(stage, f"the {side} stream has no column {{}} to join on", matching.keys, there)
            self.need(stage, _TIME, [time.column], there)
        left, right = sides
        if matching.how in ASKING:
            return left
        if left is None or right is None:
            return None
        return _joined(matching.keys, (left, right), matching.suffixes)


def _joined(
    keys: Sequence[str], sides: tuple[Sequence[str], Sequence[str]], suffixes: Sequence[str]
) -> Names:
    """The keys once, then the others of both sides; names that both have get the suffixes."""
    others = [[name for name in side if name not in keys] for side in sides]
    both = _lower(others[0]) & _lower(others[1])
    named = [
        f"{name}{suffix}" if name.lower() in both else name
        for names, suffix in zip(others, suffixes, strict=True)
        for name in names
    ]
    return (*keys, *named)


def _selected(expressions: Sequence[str], there: Names) -> Names:
    found: list[str] = []
    for text in expressions:
        named = _PLAIN.fullmatch(text) or _NAMED.fullmatch(text)
        if text.strip() == "*" and there is not None:
            found += there
        elif named:
            found.append(named.group(1) or named.group(2))
        else:
            return None
    return tuple(found)


def _with(there: Sequence[str], names: Sequence[str]) -> Names:
    return (*there, *(name for name in names if name.lower() not in _lower(there)))


def _plain(texts: Iterable[str | None]) -> list[str]:
    """The texts that are nothing but the name of a column; some words are functions without brackets."""
    found = [named.group(1) or named.group(2) for text in texts if text and (named := _PLAIN.fullmatch(text))]
    return [name for name in found if not _WITHOUT_BRACKETS.fullmatch(name)]


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
