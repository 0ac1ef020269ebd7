"""Punctuations: an end passes a node when it has come in on all its inputs."""

from __future__ import annotations

import json

import pytest

from holdfast.core.errors import HoldfastError, PlanError
from holdfast.protocols.punctuation import Punctuation, Punctuations, punctuations
from holdfast.protocols.substreams import Change, Graph, Node, Report, Stage, Verdict

TWO = Graph({"l": Stage(), "r": Stage(tasks=2), "join": Stage(("l", "r")), "out": Stage(("join",))})
LEFT, JOIN, OUT = Node("l"), Node("join"), Node("out")
INPUTS = (LEFT, Node("r", 0), Node("r", 1))


def report(node: Node, epoch: int, *changes: Change) -> Report:
    return Report(0, node, epoch, epoch - 1, changes)


def test_a_node_is_due_when_it_has_read_the_end_of_every_task_of_every_input() -> None:
    tracker = Punctuations(TWO)
    for source in INPUTS:
        tracker.apply(report(source, 0, Change("x", closed=True)))
    assert tracker.waits_for("x").messages == 3
    for epoch, sender in enumerate(INPUTS):
        assert tracker.due("x") == frozenset()
        tracker.apply(report(JOIN, epoch, Change("x", ends=(sender,))))
    assert tracker.due("x") == {JOIN}
    tracker.apply(report(JOIN, 3, Change("x", closed=True)))
    assert not tracker.ended("x")
    tracker.apply(report(OUT, 0, Change("x", ends=(JOIN,))))
    tracker.apply(report(OUT, 1, Change("x", closed=True)))
    assert tracker.ended("x")
    assert str(tracker.waits_for("x")) == "nothing"
    tracker.forget("x")
    assert not tracker.ended("x")


def test_one_goes_to_each_task_that_reads_the_node() -> None:
    graph = Graph({"in": Stage(), "a": Stage(("in",), tasks=2), "b": Stage(("in",))})
    sent = punctuations(graph, Node("in"), "x")
    assert sent == [Punctuation("x", Node("in"), node) for node in (Node("a", 0), Node("a", 1), Node("b"))]


def test_a_cycle_is_a_planning_error_that_names_its_stages() -> None:
    with pytest.raises(PlanError, match="cycle of a, b") as found:
        Punctuations(Graph({"in": Stage(), "a": Stage(("in", "b")), "b": Stage(("a",))}))
    assert "XOR tracker" in str(found.value)


def test_a_report_that_comes_again_changes_nothing_and_the_state_survives_a_crash() -> None:
    tracker = Punctuations(TWO)
    reports = (
        report(LEFT, 0, Change("x", closed=True)),
        report(JOIN, 0, Change("x", ends=(LEFT,))),
    )
    for one in reports:
        assert tracker.apply(one) is Verdict.APPLIED
        before = tracker.to_json()
        tracker = Punctuations.from_json(TWO, json.loads(json.dumps(before)))
        assert tracker.apply(one) is Verdict.KNOWN
        assert json.dumps(tracker.to_json()) == json.dumps(before)
    waiting = "not closed by r[0], r[1]; held by join[0], out[0]"
    assert str(tracker.waits_for("x")) == waiting
    assert tracker.open_labels() == ("x",)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (report(LEFT, 1, Change("x", emitted=1)), "has closed"),
        (report(JOIN, 0, Change("x", closed=True)), "before all inputs"),
        (report(JOIN, 0, Change("x", ends=(OUT,))), "does not read"),
    ],
)
def test_a_report_against_the_rules_is_refused(wrong: Report, why: str) -> None:
    tracker = Punctuations(TWO)
    tracker.apply(report(LEFT, 0, Change("x", closed=True)))
    with pytest.raises(HoldfastError, match=why):
        tracker.apply(wrong)
