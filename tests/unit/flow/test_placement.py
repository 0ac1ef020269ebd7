"""Stages are placed into groups, each a worker process; the order of a flow is kept."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.flow.placement import Group
from holdfast.flow.planner import plan


def chain(stages: int) -> tuple[hf.Flow, list]:
    """Stages s0, s1, ..., each reading the one before."""
    flow = hf.Flow("f")
    stream, streams = flow.source("in", hf.rows([{"k": 1}])), []
    for number in range(stages):
        stream = stream.as_rows().group_by("k").agg(n=hf.count()).named(f"s{number}")
        streams.append(stream)
    stream.to(hf.discard())
    return flow, streams


def sizes(groups: tuple[Group, ...]) -> list[int]:
    return [len(group.stages) for group in groups]


def test_without_a_placement_all_stages_are_in_main() -> None:
    flow, _ = chain(2)
    assert plan(flow).groups == (Group("main", ("s0", "s1")),)


def test_stages_are_placed_by_name_or_by_stream_and_the_rest_is_in_main() -> None:
    flow, streams = chain(4)
    flow.place("counting", streams[3], "s0")
    flow.place("counting", "s2")
    found = plan(flow)
    assert found.groups == (Group("counting", ("s0", "s2", "s3")), Group("main", ("s1",)))
    assert found.group_of("s2").name == "counting"


def test_a_group_without_stages_does_not_exist() -> None:
    flow, streams = chain(2)
    flow.place("all", *streams)
    assert plan(flow).groups == (Group("all", ("s0", "s1")),)


def test_placement_is_not_part_of_the_fingerprint() -> None:
    flow, _ = chain(1)
    before = plan(flow).stages[0].fingerprint()
    flow.place("own", "s0")
    assert plan(flow).stages[0].fingerprint() == before


@pytest.mark.parametrize(
    ("stages", "workers", "dealt"),
    [(5, 1, [5]), (5, 2, [2, 3]), (6, 3, [2, 2, 2]), (7, 3, [2, 2, 3]), (2, 9, [1, 1])],
)
def test_stages_are_dealt_to_workers_as_neighbours(stages: int, workers: int, dealt: list[int]) -> None:
    flow, _ = chain(stages)
    spread = plan(flow).spread(workers)
    assert sizes(spread.groups) == dealt
    assert [group.name for group in spread.groups] == [
        "main",
        *(f"main-{i + 2}" for i in range(len(dealt) - 1)),
    ]
    assert [stage for group in spread.groups for stage in group.stages] == [f"s{i}" for i in range(stages)]
    assert spread.stages == plan(flow).spread(workers).stages


def test_a_flow_that_placed_its_stages_is_not_spread() -> None:
    flow, streams = chain(2)
    flow.place("own", *streams)
    with pytest.raises(hf.PlanError, match="has placed its stages itself, in 'own'") as caught:
        plan(flow).spread(2)
    assert "--workers" in str(caught.value.hint)
    with pytest.raises(hf.PlanError, match="at least one worker, not 0"):
        plan(chain(1)[0]).spread(0)


def test_what_cannot_be_placed_says_so() -> None:
    flow, _ = chain(2)
    with pytest.raises(hf.PlanError, match="cannot name a group"):
        flow.place("a/b", "s0")
    with pytest.raises(hf.PlanError, match="names no stage"):
        flow.place("own")
    with pytest.raises(hf.PlanError, match="place takes stages of this flow"):
        flow.place("own", chain(1)[1][0])
    with pytest.raises(hf.PlanError, match="place takes stages of this flow"):
        flow.place("own", 1)
    flow.place("own", "s7")
    with pytest.raises(hf.PlanError, match="a stage 's7' that the flow does not have") as caught:
        plan(flow)
    assert "'s0', 's1'" in str(caught.value.hint)


def test_a_stage_is_placed_once() -> None:
    flow, streams = chain(2)
    flow.place("one", "s0")
    flow.place("two", streams[0])
    with pytest.raises(hf.PlanError, match="'s0' is placed twice, in 'one' and in 'two'") as caught:
        plan(flow)
    assert caught.value.stage == "s0"


def test_a_step_inside_a_stage_cannot_be_placed() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.rows([{"k": 1}]))
    rows.group_by("k").agg(n=hf.count()).named("n").to(hf.discard())
    flow.place("reading", rows)
    with pytest.raises(hf.PlanError, match="source 'in' is no stage of its own: it is part of 'n'") as caught:
        plan(flow)
    assert "Call place on the stream" in str(caught.value.hint)
