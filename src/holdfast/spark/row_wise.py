"""What stands in a transform must treat rows one by one: it runs on the rows of one epoch at a time.

A step that looks at several rows, an aggregate say, would give one answer per epoch, and another split into epochs
would give other answers. Such steps are found in the analysed plan and refused; steps on other DataFrames, a table that
the stream is joined with, are nobody's business. What leaves Spark's plan (`collect`, `toPandas`, a checkpoint) and what
a Python function does with the batches that it is given cannot be seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import DataFrame

from holdfast.core.errors import PlanError
from holdfast.spark.plan_text import Step, analysed

_STREAM = "__hf_stream"


@dataclass(frozen=True)
class _Refusal:
    """A kind of step: what it is in the user's words, what it would do, and what does the same for a stream."""

    what: str
    would: str
    instead: str


_ONE_EPOCH = "see the rows of one epoch only, and begin anew with the next"

_AGGREGATE = _Refusal(
    "an aggregate (groupBy, agg, count, pivot)",
    _ONE_EPOCH,
    "Use .group_by(...).agg(...) of the stream, with .window(...) for windows of event time.",
)
_DISTINCT = _Refusal(
    "a removal of duplicates (distinct, dropDuplicates, union distinct)",
    "let a row through again in every epoch that it comes in",
    "Use .dedup(...) of the stream, or ids= of its source.",
)
_WINDOW = _Refusal(
    "a window function (over)",
    _ONE_EPOCH,
    "Use .group_by(...).window(...).agg(...) of the stream, or .stateful(...) with order_by=.",
)
_LIMIT = _Refusal(
    "a limit (limit, offset, tail)",
    "count the rows of every epoch anew",
    "Choose rows by a condition in where(...), or keep count with .stateful(...).",
)
_SORT = _Refusal(
    "a sort (orderBy, sort)",
    "sort the rows of one epoch, whose order is not kept",
    "Leave it out, and sort what you read from the sink; .stateful(...) has order_by=.",
)
_SAMPLE = _Refusal(
    "a sample",
    "choose other rows when an epoch is run again",
    "Choose rows by a hash of their id: where('pmod(xxhash64(id), 100) < 10').",
)
_SETS = _Refusal(
    "a set operation (intersect, except, subtract)",
    _ONE_EPOCH,
    "Use a join with how='left_semi' or 'left_anti', and .dedup(...) of the stream.",
)
_GROUPS = _Refusal(
    "a function of groups (applyInPandas, applyInArrow, cogroup)",
    "be given the rows that a group has in one epoch",
    "Use .stateful(...) of the stream, with hf.each_key for a function of one key.",
)
_NUMBERS = _Refusal(
    "a number that Spark gives to rows or partitions (monotonically_increasing_id, spark_partition_id, zipWithIndex)",
    "give the same numbers in every epoch, and others when an epoch is run again",
    "Take an id from the data, or a hash of its columns: xxhash64(...).",
)
_OWN_JOIN = _Refusal(
    "a join of the stream with itself",
    "pair rows only with those of the same epoch",
    "Use .join(...) of the stream.",
)
_OUTER_JOIN = _Refusal(
    "a join that keeps rows of the other side (with the stream on the side of the nulls)",
    "give the other side's rows again in every epoch in which they have no partner, or have one",
    "Keep the stream's rows: stream.join(table, how='left'), or how='inner'.",
)
_SUBQUERY = _Refusal(
    "a subquery over the stream", _ONE_EPOCH, "Keep the value with an aggregate of the stream."
)

_REFUSED = {
    **dict.fromkeys(("Aggregate", "Pivot"), _AGGREGATE),
    **dict.fromkeys(("Distinct", "Deduplicate", "DeduplicateWithinWatermark"), _DISTINCT),
    **dict.fromkeys(("Window", "WindowGroupLimit"), _WINDOW),
    **dict.fromkeys(("GlobalLimit", "LocalLimit", "LimitAll", "Offset", "Tail"), _LIMIT),
    "Sample": _SAMPLE,
    **dict.fromkeys(("Intersect", "Except"), _SETS),
    **dict.fromkeys(("FlatMapGroupsInPandas", "FlatMapGroupsInArrow"), _GROUPS),
    **dict.fromkeys(("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow"), _GROUPS),
    **dict.fromkeys(("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"), _GROUPS),
    "AttachDistributedSequence": _NUMBERS,
}

# A reference to a column that somebody named so is followed by the column's number.
_NUMBERED = re.compile(r"(monotonically_increasing_id|spark_partition_id)\(\)(?!#)", re.IGNORECASE)

# By kind of join, the sides on which a stream may stand.
_SIDES = {"LeftOuter": {0}, "LeftSemi": {0}, "LeftAnti": {0}, "RightOuter": {1}, "FullOuter": set[int]()}


def as_stream(df: DataFrame) -> DataFrame:
    """The same rows, under a name by which the plan of what is made of them shows where they are used."""
    return df.alias(_STREAM)


def check_row_wise(stage: str, df: DataFrame) -> None:
    """Refuse what a transform does to several rows of a stream; `df` is made of DataFrames from `as_stream`."""
    check = _Check(stage)
    for step in analysed(df).from_the_leaves():
        check.take(step)


class _Check:
    """Knows through which steps of a plan the stream flows, those that have a name (WITH ... AS) among them."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.streams: set[Step] = set()
        self.named: set[str] = set()

    def take(self, step: Step) -> None:
        """Look at a step after those that it reads."""
        inputs = [below in self.streams for below in step.inputs]
        if any(below in self.streams for below in step.subqueries):
            self._refuse(_SUBQUERY, step)
        if any(inputs) and (refusal := _refusal(step, inputs)):
            self._refuse(refusal, step)
        if step.name == "CTERelationDef" and any(inputs):
            self.named.add(_second_word(step))
        elif any(inputs) or self._begins(step):
            self.streams.add(step)

    def _begins(self, step: Step) -> bool:
        if step.name == "CTERelationRef":
            return _second_word(step) in self.named
        return step.name == "SubqueryAlias" and _second_word(step) == _STREAM

    def _refuse(self, refusal: _Refusal, step: Step) -> None:
        raise PlanError(
            f"a transform has {refusal.what}, which would {refusal.would} (Spark's plan: {_short(step.text)})",
            operation="transform",
            stage=self.stage,
            hint=f"A transform treats rows one by one. {refusal.instead}",
        )


def _refusal(step: Step, inputs: list[bool]) -> _Refusal | None:
    """What is wrong with a step that rows of the stream flow into."""
    if step.name in _REFUSED:
        return _REFUSED[step.name]
    if step.name == "Sort" and re.search(r"\], true\b", step.text):
        return _SORT
    if _NUMBERED.search(step.text):
        return _NUMBERS
    if step.name.endswith("Join"):
        return _refused_join(step, inputs)
    return None


def _refused_join(step: Step, inputs: list[bool]) -> _Refusal | None:
    if sum(inputs) > 1:
        return _OWN_JOIN
    kind = step.text.removeprefix("Join ").partition(",")[0]
    return None if inputs.index(True) in _SIDES.get(kind, {0, 1}) else _OUTER_JOIN


def _second_word(step: Step) -> str:
    return step.text.split()[1].rstrip(",")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
