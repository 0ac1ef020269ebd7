"""Loops are cut into stages as everything else is; what is no loop, or cannot come to anything, is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.flow.cycles import components
from holdfast.flow.explain import explain
from holdfast.flow.feedback import FeedbackStream
from holdfast.flow.flow import Stream
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.flow.policies import Policy
from holdfast.runtime.loader import _functions

SCHEMA = "k long, n long"


def begun(name: str = "loop", flow: hf.Flow | None = None) -> tuple[hf.Flow, Stream, FeedbackStream]:
    flow = flow or hf.Flow("f")
    rows = flow.source("in", hf.files("in/", schema=SCHEMA))
    return flow, rows, flow.feedback(name, schema=SCHEMA)


def step(stream: Stream) -> Stream:
    return stream.transform(lambda df: df.selectExpr("k", "n - 1 as n").where("n > 0"))


def counted(policy: Policy | None = None, **flow: str) -> FlowPlan:
    """An aggregate that reads what a stage without state makes of it."""
    made, rows, loop = begun(flow=hf.Flow("f", **flow))  # type: ignore[arg-type]
    sums = rows.union(loop.as_rows()).group_by("k").agg(n=hf.sum("n")).named("sums").to(hf.discard())
    back = loop.close_with(step(sums)).named("back")
    if policy:
        back.recover(policy)
    return plan(made)


def test_what_closes_a_loop_is_a_stage_after_those_that_read_it() -> None:
    planned = counted()
    sums, back = planned.stages
    assert (sums.name, back.name) == ("sums", "back")
    assert [origin.id for origin in sums.inputs] == ["source:in", "channel:back.out"]
    assert [origin.id for origin in sums.feedback] == ["channel:back.out"]
    assert back.feedback == frozenset()
    assert planned.cycles == (frozenset({"sums", "back"}),)
    assert planned.cycle_of("sums") == {"sums", "back"}
    assert [(loop.name, loop.stage, loop.schema) for loop in planned.loops] == [("loop", "back", SCHEMA)]


def test_a_stage_may_read_its_own_output() -> None:
    flow, rows, loop = begun()
    loop.close_with(step(rows.union(loop))).to(hf.discard())
    (stage,) = plan(flow).stages
    assert [origin.id for origin in stage.feedback] == ["channel:rows-1.out"]
    assert plan(flow).cycles == (frozenset({"rows-1"}),)


def test_a_stream_that_is_fed_back_without_a_sink_has_the_name_of_the_loop() -> None:
    flow, rows, loop = begun("again")
    sums = rows.union(loop.as_rows()).group_by("k").agg(n=hf.sum("n")).to(hf.discard())
    loop.close_with(step(sums))
    assert [stage.name for stage in plan(flow).stages] == ["aggregate-1", "again-feedback"]


def test_who_reads_the_stream_that_closes_a_loop_reads_its_channel() -> None:
    """And not what it is made of, which would have the loop read by a stage outside of it."""
    flow, rows, loop = begun()
    back = loop.close_with(step(rows.union(loop)).named("back"))
    back.group_by("k").agg(n=hf.count()).named("counts").to(hf.discard())
    planned = plan(flow)
    assert {stage.name: [origin.id for origin in stage.inputs] for stage in planned.stages} == {
        "counts": ["channel:back.out"],
        "back": ["source:in", "channel:back.out"],
    }
    assert planned.cycles == (frozenset({"back"}),)


def test_loops_within_loops_are_one_cycle_and_loops_after_loops_are_two() -> None:
    flow, rows, inner = begun("inner")
    outer = flow.feedback("outer", schema=SCHEMA)
    one = rows.union(outer.as_rows()).group_by("k").agg(n=hf.sum("n")).named("one")
    two = one.union(inner).as_rows().group_by("k").agg(n=hf.max("n")).named("two").to(hf.discard())
    inner.close_with(two)
    outer.close_with(step(two))
    assert plan(flow).cycles == (frozenset({"one", "two", "outer-feedback"}),)

    flow, rows, first = begun("first")
    second = flow.feedback("second", schema=SCHEMA)
    one = rows.union(first).as_rows().group_by("k").agg(n=hf.sum("n")).named("one")
    two = one.union(second).as_rows().group_by("k").agg(n=hf.max("n")).named("two").to(hf.discard())
    first.close_with(one)
    second.close_with(two)
    assert plan(flow).cycles == (frozenset({"one"}), frozenset({"two"}))


def test_a_flow_without_feedback_has_no_cycles() -> None:
    flow = hf.Flow("f")
    flow.source("in", hf.rows([{"k": 1}])).group_by("k").agg(n=hf.count()).to(hf.discard())
    assert plan(flow).cycles == ()
    assert components({"a": [], "b": ["a"], "c": ["a", "b"]}) == ()


def test_the_fingerprint_of_a_stage_in_a_loop_follows_its_code_alone() -> None:
    assert [s.fingerprint() for s in counted().stages] == [s.fingerprint() for s in counted().stages]
    flow, rows, loop = begun()
    sums = rows.union(loop.as_rows()).group_by("k").agg(n=hf.max("n")).named("sums").to(hf.discard())
    loop.close_with(step(sums)).named("back")
    (sums_before, back_before), (sums_now, back_now) = counted().stages, plan(flow).stages
    assert sums_before.fingerprint() != sums_now.fingerprint()
    assert back_before.fingerprint() == back_now.fingerprint()


def test_functions_behind_a_loop_that_no_sink_reads_reach_the_workers_too() -> None:
    flow, rows, loop = begun()
    sums = rows.union(loop.as_rows()).group_by("k").agg(n=hf.sum("n")).to(hf.discard())

    def back(df):
        return df

    loop.close_with(sums.transform(back))
    assert _functions(flow) == [back]


def test_an_explanation_shows_what_comes_back() -> None:
    found = explain(counted())
    assert found["feedback"] == [{"name": "loop", "reads": "channel:back.out", "schema": SCHEMA}]
    sums, back = found["stages"]
    assert sums["feedback"] == ["channel:back.out"]
    assert (back["feedback"], back["cut_because"]) == ([], "it is fed back")


def never_closed(rows: Stream, loop: FeedbackStream) -> None:
    rows.union(loop).to(hf.discard())


def never_read(rows: Stream, loop: FeedbackStream) -> None:
    loop.close_with(rows.to(hf.discard()))


def closed_twice(rows: Stream, loop: FeedbackStream) -> None:
    back = loop.close_with(step(rows.union(loop)).to(hf.discard()))
    loop.close_with(back)


def closed_with_itself(rows: Stream, loop: FeedbackStream) -> None:
    loop.close_with(loop).to(hf.discard())


def closed_elsewhere(rows: Stream, loop: FeedbackStream) -> None:
    loop.close_with(begun()[1])


def not_made_of_it(rows: Stream, loop: FeedbackStream) -> None:
    rows.union(loop).to(hf.discard())
    loop.close_with(step(rows))


def read_outside(rows: Stream, loop: FeedbackStream) -> None:
    loop.close_with(step(rows.union(loop)).to(hf.discard()))
    loop.to(hf.discard())


def without_a_source(rows: Stream, loop: FeedbackStream) -> None:
    rows.to(hf.discard())
    loop.close_with(step(loop)).to(hf.discard())


def without_a_clock(rows: Stream, loop: FeedbackStream) -> None:
    ids = loop.transform(lambda df: df.selectExpr("k", "n", "timestamp_seconds(n) as at"))
    unique = ids.dedup("k", time="at", within="1 hour").named("unique").to(hf.discard())
    loop.close_with(rows.union(unique.transform(lambda df: df.select("k", "n"))))


@pytest.mark.parametrize(
    ("describe", "why"),
    [
        (never_closed, "feedback 'loop' is never closed"),
        (never_read, "feedback 'loop' is read by nothing that leads to a sink"),
        (closed_twice, "feedback 'loop' is closed twice"),
        (closed_with_itself, "a loop must pass a stage"),
        (closed_elsewhere, "no stream of its flow"),
        (not_made_of_it, "'rows-1' reads feedback 'loop', but nothing of what it makes comes back"),
        (read_outside, "'rows-2' reads feedback 'loop', but nothing of what it makes comes back"),
        (without_a_source, "no source leads into the cycle of feedback 'loop'"),
        (without_a_clock, "'unique' goes by event time and reads only what is fed back"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_no_loop_is_refused(describe: Callable[[Stream, FeedbackStream], None], why: str) -> None:
    flow, rows, loop = begun()

    def described() -> None:
        describe(rows, loop)
        plan(flow)

    with pytest.raises(hf.PlanError, match=why) as caught:
        described()
    assert caught.value.operation in ("describe", "plan")


def test_two_loops_need_two_names() -> None:
    flow, _, _ = begun("loop")
    with pytest.raises(hf.PlanError, match="two feedbacks named 'loop'"):
        flow.feedback("loop", schema=SCHEMA)


@pytest.mark.parametrize(
    "policy",
    [hf.no_sync(), hf.strong_production(), hf.active_standby(), hf.passive_standby(), hf.upstream_backup()],
    ids=lambda policy: policy.name,
)
def test_rows_that_are_carried_on_may_come_back(policy: Policy) -> None:
    assert counted(policy).stages[1].policy == policy


def test_rows_that_may_be_lost_may_not_come_back() -> None:
    with pytest.raises(hf.PlanError, match="must be durable before they are read") as caught:
        counted(hf.gap(), guarantee="at_most_once")
    assert caught.value.stage == "back"
    assert "hf.no_sync()" in str(caught.value.hint)
    assert "hf.gap()" not in str(caught.value.hint)


def test_a_loop_does_not_wait_for_epochs_that_it_would_have_to_bring_itself() -> None:
    with pytest.raises(hf.PlanError, match="the cycle would wait for more epochs than it brings") as caught:
        counted(hf.passive_standby(every=3))
    assert "say every=1" in str(caught.value.hint)
