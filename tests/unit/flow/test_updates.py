"""Rows that replace rows are not counted as rows, unless the flow says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.core.errors import PlanError
from holdfast.flow.explain import explain
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.explain import lines

Step = Callable[[Stream], Stream]


def rows(flow: hf.Flow, name: str = "in") -> Stream:
    return flow.source(name, hf.files(f"{name}/", schema="k long, v long, ts timestamp"))


def running(stream: Stream) -> Stream:
    return stream.group_by("k").agg(n=hf.count(), ts=hf.max("ts")).named("counts")


def windows(emit: str) -> Step:
    return lambda stream: (
        stream.group_by("k").window("ts", tumbling="1 hour", emit=emit).agg(n=hf.count()).named("counts")
    )


def same(rows, state, context):  # type: ignore[no-untyped-def]
    return state, rows


CONSUMERS: dict[str, Step] = {
    "running aggregate": lambda s: s.group_by("n").agg(keys=hf.count()),
    "windows": lambda s: s.group_by("n").window("ts", tumbling="1 day").agg(keys=hf.count()),
    "dedup": lambda s: s.dedup("k", time="ts", within="1 day"),
    "join": lambda s: rows(s.flow, "b").join(s, on="k", time=("ts", "ts"), within=("0 seconds", "1 second")),
    "substream": lambda s: s.substream(time="ts", every="1 hour"),
    "transform": lambda s: s.transform(lambda df: df).group_by("n").agg(keys=hf.count()),
    "union": lambda s: rows(s.flow, "b").union(s).group_by("k").agg(keys=hf.count()),
    "a stage of its own": lambda s: (
        s.transform(lambda df: df).named("plain").to(hf.discard()).group_by("k").agg(keys=hf.count())
    ),
}  # fmt: skip


@pytest.mark.parametrize("producer", [running, windows("updates")])
@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS)
def test_a_step_that_would_count_changes_is_refused_unless_they_are_meant_as_rows(
    producer: Step, consumer: Step
) -> None:
    flow = hf.Flow("f")
    consumer(producer(rows(flow))).named("behind").to(hf.discard())
    with pytest.raises(PlanError, match=r"'behind' reads updates: stage 'counts' gives.*as_rows\(\)"):
        plan(flow)
    flow = hf.Flow("f")
    consumer(producer(rows(flow)).as_rows()).named("behind").to(hf.discard())
    found = explain(plan(flow))
    assert {stage["name"]: stage["as_rows"] for stage in found["stages"]}["behind"] == ["channel:counts.out"]
    assert "  as rows: channel:counts.out" in list(lines(found))


def test_updates_that_come_back_by_a_loop_are_found() -> None:
    flow = hf.Flow("f")
    loop = flow.feedback("again", schema="k long, n long, ts timestamp")
    both = rows(flow).transform(lambda df: df).union(loop)
    loop.close_with(running(both)).to(hf.discard())
    with pytest.raises(PlanError, match="'counts' reads updates: stage 'counts'"):
        plan(flow)


@pytest.mark.parametrize(
    "producer",
    [
        windows("final"),
        lambda s: s.substream(time="ts", every="1 hour").group_by("k", "substream", emit="end").agg(n=hf.count()),
    ],
)  # fmt: skip
def test_rows_that_leave_once_are_rows(producer: Step) -> None:
    flow = hf.Flow("f")
    producer(rows(flow)).group_by("n").agg(keys=hf.count()).to(hf.discard())
    assert explain(plan(flow))["stages"][0]["gives"] == "rows"


def test_a_function_of_the_users_is_given_every_change_and_gives_rows() -> None:
    flow = hf.Flow("f")
    own = running(rows(flow)).stateful(same, by=["k"], state="n long", output="k long, n long").named("own")
    own.group_by("k").agg(n=hf.count()).named("behind").to(hf.discard())
    assert [stage["gives"] for stage in explain(plan(flow))["stages"]] == ["updates", "rows", "updates"]
