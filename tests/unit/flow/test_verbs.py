"""Everyday steps are described without Spark: what is wrong with them is told then, and what they are can be compared."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.core.errors import PlanError
from holdfast.flow.explain import explain
from holdfast.flow.flow import Stream
from holdfast.flow.habits import INSTEAD
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.explain import lines

Step = Callable[[Stream], Stream]


def rows(flow: hf.Flow | None = None) -> Stream:
    return (flow or hf.Flow("f")).source("in", hf.files("in/", schema="k long, v long, ts timestamp"))


WRONG: dict[str, tuple[Step, str]] = {
    "no condition": (lambda s: s.where(""), "where takes SQL text, not ''"),
    "a function": (lambda s: s.where(lambda df: df.v > 1), "where takes SQL text.*transform"),  # type: ignore[arg-type]
    "a boolean": (lambda s: s.filter(True), "where takes SQL text, not True"),  # type: ignore[arg-type]
    "no column": (lambda s: s.select(), "select needs at least one column"),
    "nothing with": (lambda s: s.with_columns(), "with_columns needs at least one column"),
    "a number": (lambda s: s.with_column("x", 1), "x takes SQL text, not 1"),  # type: ignore[arg-type]
    "nothing to drop": (lambda s: s.drop(), "drop needs at least one column"),
    "dropped twice": (lambda s: s.drop("v", "v"), "drop names a column twice"),
    "nothing to rename": (lambda s: s.rename(), "rename needs at least one column"),
    "no new name": (lambda s: s.rename(v=""), "rename takes names of columns, not ''"),
    "a union with nothing": (lambda s: s.union(), "a union takes other streams of the same flow"),
    "a union with a path": (lambda s: s.union("in2/"), "a union takes other streams of the same flow"),  # type: ignore[arg-type]
    "another flow": (lambda s: s.union(rows()), "a union takes other streams of the same flow"),
}


@pytest.mark.parametrize(("step", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_expression_and_no_column_is_refused_where_it_is_said(step: Step, said: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){said}"):
        step(rows())


def test_explain_says_what_each_step_does() -> None:
    flow = hf.Flow("f")
    stream = (
        rows(flow)
        .where("v > 1")
        .with_column("w", "v * 2")
        .drop("v")
        .rename(w="v")
        .select("k", v="v + 1", ts="ts")
    )
    stream.transform(lambda df: df).group_by("k").agg(n=hf.count()).named("totals").to(hf.discard())
    found = explain(plan(flow))["stages"][0]
    assert found["prefix"]["steps"] == [
        "where v > 1",
        "with w = v * 2",
        "drop v",
        "rename w to v",
        "select k, v + 1 AS `v`, ts AS `ts`",
        "<lambda>",
    ]
    assert any("steps: where v > 1, with w = v * 2" in line for line in lines(explain(plan(flow))))


def code_of(step: Step) -> dict[str, str]:
    flow = hf.Flow("f")
    step(rows(flow)).group_by("k").agg(n=hf.count()).named("totals").to(hf.discard())
    return dict(plan(flow).stages[0].code())


def test_a_step_is_what_it_says() -> None:
    """Another condition is other code, and is named; the same one is the same, however it is spelled in Python."""
    one = code_of(lambda s: s.where("v > 1"))
    assert one == code_of(lambda s: s.filter("v > 1"))
    assert one != code_of(lambda s: s.where("v > 2"))
    assert "`where v > 1`" in one
    assert code_of(lambda s: s.drop("v").where("k > 1")) != code_of(lambda s: s.where("k > 1").drop("v"))
    assert code_of(lambda s: s.rename(v="w")) == code_of(lambda s: s.rename({"v": "w"}))


@pytest.mark.parametrize(
    "step", [lambda s: s.where("n > 1"), lambda s: s.rename(n="m"), lambda s: s.drop("ts")]
)
def test_changes_stay_changes_behind_a_step(step: Step) -> None:
    flow = hf.Flow("f")
    counts = rows(flow).group_by("k").agg(n=hf.count(), ts=hf.max("ts")).named("counts")
    step(counts).group_by("k").agg(keys=hf.count()).named("behind").to(hf.discard())
    with pytest.raises(PlanError, match="'behind' reads updates"):
        plan(flow)


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_a_habit_of_pyspark_is_told_what_it_is_called_here(name: str) -> None:
    with pytest.raises(AttributeError, match=f"a stream has no '{name}'; here it is "):
        getattr(rows(), name)


@pytest.mark.parametrize("name", sorted(set(INSTEAD)))
def test_what_is_told_instead_is_there(name: str) -> None:
    method = INSTEAD[name].lstrip(".").partition("(")[0]
    if INSTEAD[name].startswith(("nothing", "`")) or not method.isidentifier():
        return
    assert hasattr(Stream, method)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("groupd_by", "did you mean 'group_by'"),
        ("wher", "did you mean 'where'"),
        ("zzz", "transform"),
    ],
)
def test_a_slip_is_told_what_was_meant(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(rows(), name)


def test_a_stream_can_be_copied_and_asked_for_what_it_has_not() -> None:
    stream = rows()
    assert copy.copy(stream).node is stream.node
    assert not hasattr(stream, "__arrow_array__")
    assert (
        pickle.loads(pickle.dumps(stream.where("k > 1").node.function)) == stream.where("k > 1").node.function
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("out.parquet", r"'out.parquet' is not a sink.*hf\.parquet\(\"out.parquet\"\)"),
        ("sqlite:///out.db", r"is not a sink.*hf\.table\(\"sqlite:///out.db\", \"TABLE\"\)"),
        (hf.files("in/", schema="k long"), r"is not a sink.*Rows come from there"),
        (None, r"None is not a sink.*hf\.parquet"),
    ],
)
def test_what_is_no_sink_is_told_what_would_be_one(given: object, said: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){said}"):
        rows().to(given)  # type: ignore[arg-type]


def test_what_is_no_source_is_told_what_would_be_one() -> None:
    with pytest.raises(PlanError, match=r"(?s)'in/' is not a source.*hf\.files\(\"in/\""):
        hf.Flow("f").source("in", "in/")  # type: ignore[arg-type]
