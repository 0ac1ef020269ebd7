"""A join as a user describes it: what is refused and why, and the stage with two sides that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.flow import nodes
from holdfast.flow.explain import explain
from holdfast.flow.flow import Stream
from holdfast.flow.flow_plan import Feed
from holdfast.flow.joins import Matching
from holdfast.flow.planner import plan
from holdfast.flow.prefixes import Apply, Concat, Input, Read
from holdfast.flow.windows import EventTime

SECOND, MINUTE = 1_000_000, 60_000_000
JOIN: dict[str, Any] = {"on": ["k"], "time": ("ts", "at"), "within": ("-5 minutes", "1 minute")}


def source(flow: hf.Flow, name: str = "in") -> Stream:
    return flow.source(name, hf.files("in/", schema="k long, ts timestamp"))


def described(**changed: Any) -> Matching:
    flow = hf.Flow("f")
    node = source(flow, "a").join(source(flow, "b"), **{**JOIN, **changed}).node
    assert isinstance(node, nodes.Join)
    return node.matching


def refusal(describe: Callable[[], object]) -> str:
    with pytest.raises(hf.PlanError) as refused:
        describe()
    assert refused.value.operation == "describe"
    return refused.value.message


def test_every_part_of_a_join_is_kept() -> None:
    found = described(late="10 s", max_ahead="1 minute", how="left", suffixes=("_l", "_r"))
    times = EventTime("ts", 10 * SECOND, MINUTE), EventTime("at", 10 * SECOND, MINUTE)
    assert found == Matching(("k",), times, -5 * MINUTE, MINUTE, "left", ("_l", "_r"))


def test_what_is_not_said_is_inner_on_time_and_suffixed_on_the_right() -> None:
    found = described()
    assert (found.how, found.suffixes, found.times[0]) == ("inner", ("", "_right"), EventTime("ts", 0, None))


def test_one_key_may_stand_alone_and_bounds_may_be_durations_of_python() -> None:
    assert described(on="k").keys == ("k",)
    found = described(within=(-timedelta(minutes=2), timedelta(0)))
    assert (found.low_us, found.high_us) == (-2 * MINUTE, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"on": []}, "join needs at least one column"),
        ({"on": ["k", "k"]}, "names a column twice: k"),
        ({"how": "sideways"}, "how='sideways' is not one of inner, left, right, full, semi, anti"),
        ({"how": "left outer"}, "how='left outer' is not one of inner, left"),
        ({"how": None}, "how=None is not one of inner, left"),
        ({"how": "cross"}, "a cross join of streams would have to keep every row for ever"),
        ({"within": ("5 s", "-5 s")}, "is empty"),
        ({"within": "5 s"}, "within='5 s' is not a pair"),
        ({"within": ("5", "6")}, "is not a duration"),
        ({"within": ("-x", "6 s")}, "is not a duration"),
        ({"time": "ts"}, "time='ts' is not a pair"),
        ({"suffixes": ("_x", "_x")}, "tell nothing apart"),
        ({"late": "-1 s"}, "late='-1 s' is not a duration"),
        ({"max_ahead": "soon"}, "max_ahead='soon' is not a duration"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], said: str) -> None:
    assert said in refusal(lambda: described(**changed))


@pytest.mark.parametrize(
    ("kind", "spellings"),
    {
        "inner": ["inner", "INNER"],
        "left": ["left", "leftouter", "left_outer", "Left_Outer"],
        "right": ["right", "rightouter", "right_outer"],
        "full": ["full", "outer", "fullouter", "full_outer"],
        "semi": ["semi", "leftsemi", "left_semi"],
        "anti": ["anti", "leftanti", "left_anti"],
    }.items(),
)
def test_sparks_names_mean_the_same(kind: str, spellings: list[str]) -> None:
    assert {described(how=how).how for how in spellings} == {kind}


@pytest.mark.parametrize(
    ("how", "instead"),
    [
        ("cross", 'join(right, on=..., time=..., within=..., how="inner")'),
        ("right_semi", 'right.join(left, ..., how="semi")'),
        ("rightanti", 'right.join(left, ..., how="anti")'),
        ("sideways", "Spark's other names for these do as well"),
    ],
)
def test_another_kind_is_refused_with_what_to_write(how: str, instead: str) -> None:
    with pytest.raises(hf.PlanError) as refused:
        described(how=how)
    assert instead in str(refused.value.hint)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_explain_says_what_kind_a_join_is(how: str) -> None:
    flow = hf.Flow("f")
    source(flow, "a").join(source(flow, "b"), **JOIN, how=how).named("j").to(hf.discard())
    (stage,) = explain(plan(flow))["stages"]
    assert stage["operator"]["kind"] == f"{how} join"


def test_streams_of_two_flows_are_not_joined() -> None:
    one, other = source(hf.Flow("f")), source(hf.Flow("g"))
    assert refusal(lambda: one.join(other, **JOIN)) == "a join takes two streams of one flow"
    assert refusal(lambda: one.join("b", **JOIN)) == "a join takes two streams of one flow"  # type: ignore[arg-type]
    assert one.flow.stateful == []


def test_a_join_is_one_stage_with_a_prefix_for_each_side() -> None:
    flow = hf.Flow("f")
    a, b, c = (source(flow, name) for name in "abc")
    a.transform(lambda df: df).join(b.union(c), **JOIN).to(hf.discard())
    (stage,) = plan(flow).stages
    assert stage.name == "join-1"
    assert isinstance(stage.prefix, Apply)
    assert isinstance(stage.right, Concat)
    assert [origin.name for origin in stage.inputs] == ["a", "b", "c"]
    assert [(feed.side, feed.input.name) for feed in stage.feeds] == [(0, "a"), (1, "b"), (1, "c")]
    assert stage.reads_as_is(Input("source", "b"), 1)
    assert not stage.reads_as_is(Input("source", "a"), 0)


def test_a_stream_that_is_joined_with_itself_is_read_once_and_has_two_clocks() -> None:
    flow = hf.Flow("f")
    rows = source(flow, "a")
    rows.join(rows, **JOIN).to(hf.discard())
    (stage,) = plan(flow).stages
    origin = Input("source", "a")
    assert stage.inputs == (origin,)
    assert stage.feeds == (Feed(0, origin), Feed(1, origin))
    assert [feed.id for feed in stage.feeds] == ["source:a", "right:source:a"]


def test_stages_on_either_side_are_read_by_their_channels() -> None:
    flow = hf.Flow("f")
    counts = source(flow, "a").group_by("k").window("ts", tumbling="1 minute").agg(n=hf.count()).named("n")
    counts.join(source(flow, "b"), **JOIN).named("j").group_by("k").agg(m=hf.count()).to(hf.discard())
    first, second, third = plan(flow).stages
    assert second.prefix == Read(Input("channel", "n", "out"))
    assert plan(flow).consumers("n") == ["stage:j"]
    assert [origin.id for origin in third.inputs] == ["channel:j.out"]
    assert first.right is third.right is None


def test_the_fingerprint_follows_every_part() -> None:
    def fingerprint(swap: bool = False, **changed: Any) -> str:
        flow = hf.Flow("f")
        a, b = source(flow, "a"), source(flow, "b")
        one, other = (b, a) if swap else (a, b)
        one.join(other, **{**JOIN, **changed}).to(hf.discard())
        return plan(flow).stages[0].fingerprint()

    found = [
        fingerprint(),
        fingerprint(swap=True),
        *(fingerprint(how=how) for how in ("left", "right", "full", "semi", "anti")),
        fingerprint(within=("-5 minutes", "2 minutes")),
        fingerprint(time=("at", "ts")),
        fingerprint(late="1 s"),
        fingerprint(suffixes=("_l", "")),
    ]
    assert len(set(found)) == len(found)
    assert fingerprint() == fingerprint()
    assert fingerprint(how="left") == fingerprint(how="left_outer")


def test_late_rows_leave_by_their_side() -> None:
    flow = hf.Flow("f")
    joined = source(flow, "a").join(source(flow, "b"), **JOIN, max_ahead="1 minute").named("j")
    joined.late_to(hf.discard(), side="left").late_to(hf.discard(), side="right")
    joined.quarantine_to(hf.discard(), side="right")
    made = plan(flow)
    assert made.stages[0].side_ports == {"late", "late_right", "quarantine_right"}
    assert [(sink.name, sink.port) for sink in made.sinks] == [
        ("j-late-1", "late"),
        ("j-late_right-1", "late_right"),
        ("j-quarantine_right-1", "quarantine_right"),
    ]


def test_the_side_must_be_said_behind_a_join_and_nowhere_else() -> None:
    flow = hf.Flow("f")
    joined = source(flow, "a").join(source(flow, "b"), **JOIN)
    deduped = source(flow, "c").dedup("k", time="ts", within="1 s")
    for stream, side in ((joined, None), (joined, "both"), (deduped, "left"), (deduped, "both")):
        assert "is not one of the sides" in refusal(
            lambda stream=stream, side=side: stream.late_to(hf.discard(), side=side)
        )
    assert "there is no max_ahead" in refusal(lambda: joined.quarantine_to(hf.discard(), side="left"))
    assert flow.sinks == []
