"""The XOR tracker: when a substream ends, who is due, and what is refused."""

from __future__ import annotations

import itertools
import json

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.protocols.substreams import Change, Graph, Node, Report, Stage, Verdict
from holdfast.protocols.tracker import Notice, Tracker, shard_of, split

LINE = Graph({"in": Stage(), "a": Stage(("in",)), "b": Stage(("a",))})
IN, A, B = Node("in"), Node("a"), Node("b")
M1, M2 = 0x1111, 0x2222  # numbers of two messages
SHARDS = [931, 635, 505]


def report(node: Node, epoch: int, *changes: Change) -> Report:
    return Report(0, node, epoch, epoch - 1, changes)


# in sends one message to a, a makes one of it for b, b drops it.
PASSED = (
    report(IN, 0, Change("x", M1, emitted=1, closed=True)),
    report(A, 0, Change("x", M1 ^ M2, emitted=1, consumed=1)),
    report(B, 0, Change("x", M2, consumed=1)),
)


@pytest.mark.parametrize("order", list(itertools.permutations(PASSED)))
def test_a_substream_ends_with_the_last_report_in_whatever_order_they_come(order: tuple[Report, ...]) -> None:
    tracker = Tracker(LINE)
    for at, one in enumerate(order):
        assert not tracker.ended("x"), f"after {at}"
        assert tracker.apply(one) is Verdict.APPLIED
    assert tracker.ended("x")
    assert tracker.open_labels() == ()
    assert str(tracker.waits_for("x")) == "nothing"


def test_a_report_that_comes_again_changes_nothing() -> None:
    tracker = Tracker(LINE)
    tracker.apply(PASSED[0])
    before = tracker.to_json()
    assert tracker.apply(PASSED[0]) is Verdict.KNOWN
    assert tracker.to_json() == before
    assert not tracker.ended("x")


def test_a_substream_is_open_until_every_source_has_closed_it_also_one_that_had_no_row_of_it() -> None:
    tracker = Tracker(Graph({"in": Stage(tasks=2), "a": Stage(("in",))}))
    tracker.apply(report(IN, 0, Change("x", closed=True)))
    assert not tracker.ended("x")
    assert tracker.waits_for("x").sources == (Node("in", 1),)
    tracker.apply(report(Node("in", 1), 0, Change("x", closed=True)))
    assert tracker.ended("x")


def test_a_closing_waits_for_the_emissions_before_it() -> None:
    tracker = Tracker(LINE)
    assert tracker.apply(report(IN, 1, Change("x", closed=True))) is Verdict.EARLY
    assert tracker.open_labels() == ()
    tracker.apply(report(IN, 0, Change("x", M1, emitted=1)))
    tracker.apply(report(IN, 1, Change("x", closed=True)))
    assert str(tracker.waits_for("x")) == "1 in flight"


def test_holders_are_due_in_graph_order() -> None:
    tracker = Tracker(LINE)
    tracker.apply(report(IN, 0, Change("x", M1, emitted=1, closed=True)))
    tracker.apply(report(A, 0, Change("x", M1 ^ M2, emitted=1, consumed=1, holds=True)))
    assert tracker.due("x") == frozenset()
    tracker.apply(report(B, 0, Change("x", M2, consumed=1, holds=True)))
    assert tracker.due("x") == {A}
    assert tracker.notices("x") == [Notice("x", A)]
    tracker.apply(report(A, 1, Change("x", M1, emitted=1)))
    assert tracker.due("x") == frozenset()
    tracker.apply(report(B, 1, Change("x", M1, consumed=1, holds=True)))
    assert tracker.due("x") == {B}
    tracker.apply(report(B, 2, Change("x")))
    assert tracker.ended("x")


def test_a_cycle_is_due_as_one_and_ends_before_those_below_it() -> None:
    graph = Graph({"in": Stage(), "a": Stage(("in", "b")), "b": Stage(("a",)), "out": Stage(("b",))})
    tracker, out = Tracker(graph), Node("out")
    tracker.apply(report(IN, 0, Change("x", M1, emitted=1, closed=True)))
    tracker.apply(report(A, 0, Change("x", M1 ^ M2, emitted=1, consumed=1, holds=True)))
    tracker.apply(report(B, 0, Change("x", M2 ^ 7, emitted=1, consumed=1, holds=True)))
    tracker.apply(report(out, 0, Change("x", 7, consumed=1, holds=True)))
    assert tracker.due("x") == {A, B}
    # b ends first; a's final emission makes it take the label up again.
    tracker.apply(report(B, 1, Change("x")))
    tracker.apply(report(A, 1, Change("x", 9, emitted=1)))
    tracker.apply(report(B, 2, Change("x", 9, consumed=1, holds=True)))
    assert tracker.due("x") == {B}
    tracker.apply(report(B, 3, Change("x")))
    assert tracker.due("x") == {out}


def test_the_state_survives_a_crash() -> None:
    tracker = Tracker(LINE)
    reports = (
        report(IN, 0, Change("x", M1, emitted=1), Change("y", closed=True)),
        report(IN, 1, Change("x", M2, emitted=1, closed=True)),
        report(A, 0, Change("x", M2, consumed=1, holds=True)),
        report(A, 1, Change("x", M1, consumed=1)),
    )
    for one in reports:
        tracker.apply(one)
        tracker = Tracker.from_json(LINE, json.loads(json.dumps(tracker.to_json())))
        assert tracker.apply(one) is Verdict.KNOWN
    assert tracker.ended("x")
    assert tracker.ended("y")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (report(Node("c"), 0, Change("x")), "no such node"),
        (report(B, 0, Change("x"), Change("x")), "twice"),
        (report(IN, 1, Change("x", M2, emitted=1)), "this source has closed"),
        (report(A, 0, Change("x", closed=True)), "is no source"),
        (report(B, 0, Change("x", M2, emitted=1)), "without having had any"),
        (report(B, 0, Change("x", holds=True)), "without having had any"),
        (report(B, 0, Change("ended")), "which has ended"),
        (report(IN, 1, Change("y", consumed=1)), "is a source"),
    ],
)
def test_a_report_against_the_rules_is_refused_and_nothing_of_it_applied(wrong: Report, why: str) -> None:
    tracker = Tracker(LINE)
    tracker.apply(report(IN, 0, Change("x", M1, emitted=1, closed=True), Change("ended", closed=True)))
    before = tracker.to_json()
    with pytest.raises(HoldfastError, match=why):
        tracker.apply(wrong)
    assert tracker.to_json() == before


def test_a_zero_that_the_count_contradicts_is_no_end() -> None:
    tracker = Tracker(LINE)
    tracker.apply(report(IN, 0, Change("x", 0, emitted=2, closed=True)))
    assert not tracker.ended("x")


def test_an_ended_substream_can_be_forgotten() -> None:
    tracker = Tracker(LINE)
    tracker.apply(report(IN, 0, Change("x", closed=True)))
    tracker.forget("x")
    assert not tracker.ended("x")
    assert tracker.to_json()["ended"] == []


def test_shards_share_nothing_and_each_has_an_unbroken_chain_of_its_reports() -> None:
    shards = [Tracker(LINE) for _ in range(3)]
    names = [f"label-{number}" for number in range(12)]
    last: dict[int, int] = {}
    for epoch, label in enumerate(names):
        for shard, part in split(report(IN, epoch, Change(label, closed=True)), 3, last).items():
            assert shards[shard].apply(part) is Verdict.APPLIED
            last[shard] = epoch
    for label in names:
        assert [tracker.ended(label) for tracker in shards].index(True) == shard_of(label, 3)
        assert sum(tracker.ended(label) for tracker in shards) == 1
    assert len(last) == 3


def test_what_a_substream_waits_for_is_told_with_numbers_and_names() -> None:
    tracker = Tracker(LINE)
    assert tracker.waits_for("unseen").sources == (IN,)
    tracker.apply(report(IN, 0, Change("x", M1 ^ M2, emitted=3, closed=True)))
    tracker.apply(report(A, 0, Change("x", M1, consumed=1, holds=True)))
    found = tracker.waits_for("x")
    assert (found.sources, found.messages, found.holders) == ((), 2, (A,))
    tracker.apply(report(A, 1, Change("x", M2, consumed=2, holds=True)))
    assert tracker.waits_for("x").messages == 0


def test_a_shard_is_told_of_its_own_labels_only() -> None:
    labels = [f"label-{number}" for number in range(20)]
    whole = report(IN, 0, *(Change(label) for label in labels))
    parts = split(whole, 3, {})
    assert {shard: {change.label for change in part.changes} for shard, part in parts.items()} == {
        shard: {label for label in labels if shard_of(label, 3) == shard} for shard in range(3)
    }


def test_the_shard_of_a_label_is_the_same_in_every_version() -> None:
    """An agent that was told of half a substream is told of the rest."""
    assert [shard_of(label, 1_000) for label in ("monday", "tuesday", "")] == SHARDS


def test_a_change_is_written_without_what_it_does_not_say() -> None:
    assert Change("x").to_json() == {"label": "x"}
    assert Change("x", 1, emitted=2).to_json() == {"label": "x", "number": f"{1:016x}", "emitted": 2}
