"""The tree of an analysed plan, read from the text that Spark explains it with: Classic and Connect both give that.

A line is a step, its indentation the depth: a step's inputs stand one level below it, the plans of its subqueries two.
A string literal may run over several lines; what follows its first line has no branch in front and is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from holdfast.core import limits

_BRANCH = re.compile(r"(?P<above>(?:[ :]  )*)[+:]- (?P<text>.*)")
_BEGINS, _ENDS = "== Analyzed Logical Plan ==", "== Optimized Logical Plan =="
_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"


@dataclass(eq=False)
class Step:
    """One step of a plan: its name, what Spark says of it, and what it reads."""

    text: str
    depth: int = 0
    inputs: list[Step] = field(default_factory=list)
    subqueries: list[Step] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Spark's name of the step, such as Aggregate."""
        return re.split(r"\W", self.text, maxsplit=1)[0]

    def from_the_leaves(self) -> Iterator[Step]:
        """All steps, each behind what it reads. Plans may be deeper than Python's stack."""
        path = [(self, iter([*self.subqueries, *self.inputs]))]
        while path:
            step, rest = path[-1]
            below = next(rest, None)
            if below is None:
                path.pop()
                yield step
            else:
                path.append((below, iter([*below.subqueries, *below.inputs])))


def analysed(df: DataFrame) -> Step:
    """The analysed plan of a DataFrame; nothing is run."""
    spark = df.sparkSession
    with _all_fields(spark):
        text = spark.sql("explain extended select * from {rows}", rows=df).collect()[0][0]
    return parsed(text)


def parsed(text: str) -> Step:
    """The tree of an extended explanation."""
    lines = text.partition(_BEGINS)[2].partition(_ENDS)[0].strip("\n").split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("Project ["))
    root = Step(lines[first])
    path = [root]
    for line in lines[first + 1 :]:
        found = _BRANCH.fullmatch(line)
        if found is None:
            continue
        step = Step(found["text"], len(found["above"]) // 3 + 1)
        while path[-1].depth >= step.depth:
            path.pop()
        parent = path[-1]
        (parent.inputs if step.depth == parent.depth + 1 else parent.subqueries).append(step)
        path.append(step)
    return root


@contextmanager
def _all_fields(spark: SparkSession) -> Iterator[None]:
    """Spark leaves out what a step with many columns computes, unless it is told not to."""
    before = spark.conf.get(_FIELDS_SHOWN, None)
    spark.conf.set(_FIELDS_SHOWN, str(limits.PLAN_FIELDS_MAX))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_FIELDS_SHOWN)
        else:
            spark.conf.set(_FIELDS_SHOWN, before)
