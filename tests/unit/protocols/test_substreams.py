"""What both trackers share: the graph, reports, and in which order they are taken."""

from __future__ import annotations

import json

import pytest

from holdfast.core.errors import HoldfastError, PlanError
from holdfast.protocols.substreams import Change, Graph, Heads, Node, Report, Stage, Verdict, Waiting

LOOP = Graph({"in": Stage(), "a": Stage(("in", "b")), "b": Stage(("a",)), "out": Stage(("b",), tasks=2)})


def report(epoch: int, after: int, branch: int = 0) -> Report:
    return Report(branch, Node("in"), epoch, after, ())


def test_a_cycle_is_one_place_and_nobody_in_it_is_above() -> None:
    assert LOOP.cyclic == {"a", "b"}
    assert not LOOP.is_above("a", "b")
    assert not LOOP.is_above("b", "a")
    assert LOOP.is_above("in", "b")
    assert LOOP.is_above("a", "out")
    assert not LOOP.is_above("out", "a")


def test_every_task_is_a_node_and_stages_that_read_nothing_are_sources() -> None:
    assert LOOP.sources == {Node("in")}
    assert LOOP.nodes_of("out") == (Node("out", 0), Node("out", 1))
    assert LOOP.readers["b"] == ("a", "out")


def test_a_graph_with_unknown_stages_or_without_sources_cannot_be_planned() -> None:
    with pytest.raises(PlanError, match="no stage"):
        Graph({"a": Stage(("b",))})
    with pytest.raises(PlanError, match="no substream can begin"):
        Graph({"a": Stage(("a",))})


def test_a_report_is_the_same_after_json() -> None:
    changes = (
        Change("monday", (1 << 64) - 1, 2, 3, holds=True),
        Change("tuesday", closed=True, ends=(Node("a"), Node("b", 7))),
        Change("wednesday"),
    )
    whole = Report(3, Node("out", 1), 9, 4, changes)
    assert Report.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_reports_of_a_node_are_taken_in_their_order_and_once() -> None:
    heads = Heads()
    assert heads.judge(report(2, after=0)) is Verdict.EARLY
    for epoch, after in ((0, -1), (2, 0)):
        assert heads.judge(report(epoch, after)) is Verdict.APPLIED
        heads.advance(report(epoch, after))
    heads = Heads.from_json(json.loads(json.dumps(heads.to_json())))
    assert heads.judge(report(0, after=-1)) is Verdict.KNOWN
    assert heads.judge(report(2, after=0)) is Verdict.KNOWN
    assert heads.judge(report(7, after=2)) is Verdict.APPLIED


def test_a_report_that_leaves_out_another_is_refused() -> None:
    heads = Heads()
    heads.advance(report(5, after=-1))
    with pytest.raises(HoldfastError, match="epoch 5 was reported since"):
        heads.judge(report(6, after=3))


def test_branches_have_orders_of_their_own() -> None:
    heads = Heads()
    heads.advance(report(5, after=-1))
    assert heads.judge(report(5, after=-1, branch=1)) is Verdict.APPLIED


def test_what_a_substream_waits_for_reads_as_a_sentence() -> None:
    waiting = Waiting((Node("in"),), 3, (Node("b"), Node("a", 1)))
    assert str(waiting) == "not closed by in[0]; 3 in flight; held by a[1], b[0]"
    assert str(Waiting()) == "nothing"
