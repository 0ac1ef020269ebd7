"""Columns are followed without Spark as far as they are certain, and no further."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.core.errors import PlanError
from holdfast.flow import columns
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan

SCHEMA = "id string, user string, qty int, at timestamp"


def check(build: Callable[[Stream, Stream], Stream], schema: str = SCHEMA) -> None:
    flow = hf.Flow("f")
    left = flow.source("left", hf.files("in/", schema=schema))
    right = flow.source("right", hf.rows([{"id": "a", "paid": 1, "at": None}]))
    build(left, right).to(hf.discard())
    columns.check(plan(flow))


def join(left: Stream, right: Stream, on: str = "id", time: str = "at") -> Stream:
    return left.join(right, on=on, time=("at", time), within=("0 seconds", "1 minute"))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda a, _: a.group_by("usr").agg(n=hf.count()), "there is no column 'usr' to group by"),
        (lambda a, _: a.group_by("user").agg(n=hf.sum("qyt")), "agg(n=...) names the column 'qyt'"),
        (lambda a, _: a.group_by("user").agg(n=hf.last("qty", by="ts")), "agg(n=...) names the column 'ts'"),
        (lambda a, _: a.group_by("user").window("ts", tumbling="1 minute").agg(n=hf.count()), "there is no time column 'ts'"),
        (lambda a, _: a.dedup("ids", time="at", within="1 minute"), "there is no column 'ids' to group by"),
        (lambda a, b: join(a, b, on="user"), "the right stream has no column 'user' to join on"),
        (lambda a, b: join(a, b, time="ts"), "there is no time column 'ts'"),
        (lambda a, b: join(a, b).group_by("at_left").agg(n=hf.count()), "there is no column 'at_left' to group by"),
        (lambda a, b: a.union(b), "stream 2 of a union has no column 'user', which the first has"),
        (lambda a, _: a.drop("quantity"), "drop names the column 'quantity'"),
        (lambda a, _: a.drop("qty").rename(qty="n"), "rename names the column 'qty'"),
        (lambda a, _: a.select("id", "users"), "select names the column 'users'"),
        (lambda a, _: a.select("id", total="qty * 2").drop("qty"), "drop names the column 'qty'"),
        (lambda a, _: a.where("id is not null").rename(user="u").group_by("user").agg(n=hf.count()), "'user'"),
        (lambda a, _: a.group_by("user").agg(n=hf.count()).as_rows().group_by("m").agg(n=hf.count()), "'m'"),
        (lambda a, _: a.group_by("user").agg(n=hf.count()).to(hf.table("sqlite:///o.db", "t", key="usr")), "hf.table has key=['usr'], but there is no column 'usr'"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_told(build: Callable[[Stream, Stream], Stream], reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(build)
    assert reason in caught.value.message
    assert "The columns are" in str(caught.value.hint)


def test_all_of_them_are_told_at_once_with_what_was_meant() -> None:
    with pytest.raises(PlanError) as caught:
        check(lambda a, _: a.group_by("usr").window("ts", tumbling="1 minute").agg(n=hf.sum("qyt")))
    assert [f"'{name}'" in caught.value.message for name in ("usr", "ts", "qyt")] == [True] * 3
    assert "Did you mean 'user' for 'usr'?" in str(caught.value.hint)
    assert caught.value.hint
    assert caught.value.hint.count("The columns are") == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda a, _: a.transform(lambda df: df.withColumnRenamed("qty", "n")).group_by("n").agg(s=hf.sum("n")),
        lambda a, _: a.group_by("USER").agg(n=hf.sum("Qty * price.net"), t=hf.max("current_date")),
        lambda a, _: a.select("qty + 1").group_by("(qty + 1)").agg(n=hf.count()),
        lambda a, _: a.select("*", "qty as n").group_by("n", "id").agg(n2=hf.count()),
        lambda a, _: a.with_column("n", "qty").group_by("n").agg(s=hf.sum("n")),
        lambda a, _: a.substream(by="user").group_by("substream", emit="end").agg(n=hf.count()),
        lambda a, b: join(a, b).group_by("at_right", "paid").agg(n=hf.count()),
        lambda a, _: a.group_by("user").window("at", tumbling="1 minute").agg(n=hf.count()).dedup("user", time="window_end", within="1 hour"),
        lambda a, b: a.select("id", "at", paid="qty").union(b),
    ],
)  # fmt: skip
def test_what_is_there_or_not_certain_is_left_alone(build: Callable[[Stream, Stream], Stream]) -> None:
    check(build)


def test_a_struct_and_an_unknown_schema_are_left_to_spark() -> None:
    flow = hf.Flow("f")
    rows = flow.source("rows", hf.files("in/"))
    rows.group_by("whatever").agg(n=hf.count()).to(hf.discard())
    columns.check(plan(flow))
    check(lambda a, _: a.group_by("id.x").agg(n=hf.count()), "id struct<x: int>")
