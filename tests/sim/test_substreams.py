"""No substream ends early and all end, by either tracker, in thousands of schedules of crashes, loss and reordering.

`HOLDFAST_SIM_SEED=n` runs the schedule of one seed alone and prints all its steps.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.core.json import Json
from holdfast.protocols import message_numbers
from holdfast.protocols.message_numbers import Segment, Words
from holdfast.protocols.punctuation import Punctuations
from holdfast.protocols.substreams import Graph, Heads, Node, Report, Verdict
from holdfast.protocols.tracker import Tracker, _Sum
from sim import substreams
from sim.checker import Violation

ONE = os.environ.get("HOLDFAST_SIM_SEED")
SOME = 200
MANY, BLOCK = 10_000, 1_000
PLANTED_SEEDS_MAX = 400

everything = pytest.mark.skipif(ONE is not None, reason="HOLDFAST_SIM_SEED names one schedule")

# What must have happened somewhere, or the simulation shows less than it seems to.
REACHED = (
    "commit", "due", "report applied", "report known", "report early", "message lost", "task crash",
    "task crash with a plan", "agent crash", "tracker", "punctuation", "cyclic",
)  # fmt: skip

Plant = Callable[[pytest.MonkeyPatch], None]


def run_all(first: int, stop: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, stop):
        counts += substreams.run(seed)
    assert {step for step in REACHED if not counts[step]} == set()


@pytest.mark.skipif(ONE is None, reason="no HOLDFAST_SIM_SEED")
def test_the_schedule_of_one_seed() -> None:
    substreams.run(int(ONE or 0), trace=True)


@everything
def test_no_substream_ends_early_and_all_end() -> None:
    run_all(0, SOME)


@everything
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MANY, BLOCK))
def test_no_substream_ends_early_in_ten_thousand_schedules(first: int) -> None:
    run_all(first, first + BLOCK)


@everything
def test_a_seed_is_one_schedule() -> None:
    assert substreams.run(7) == substreams.run(7)


def reports_applied_twice(patch: pytest.MonkeyPatch) -> None:
    real = Heads.judge

    def judge(self: Heads, report: Report) -> Verdict:
        verdict = real(self, report)
        return Verdict.APPLIED if verdict is Verdict.KNOWN else verdict

    patch.setattr(Heads, "judge", judge)


def reports_applied_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Each once, by a set of identities, but none waits for those before it."""

    def identity(report: Report) -> tuple[int, Node]:
        return report.branch, Node(str(report.node), report.epoch)

    def judge(self: Heads, report: Report) -> Verdict:
        return Verdict.KNOWN if identity(report) in self._epochs else Verdict.APPLIED

    patch.setattr(Heads, "judge", judge)
    patch.setattr(Heads, "advance", lambda self, report: self._epochs.setdefault(identity(report), 0))


def tokens_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Sum, "holders", property(lambda self: set(), lambda self, holders: None), raising=False)


def state_forgotten_at_a_crash(patch: pytest.MonkeyPatch) -> None:
    def from_json(cls: type[Tracker], graph: Graph, body: Json) -> Tracker:
        return cls(graph)

    patch.setattr(Tracker, "from_json", classmethod(from_json))


def heads_forgotten_at_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heads, "from_json", classmethod(lambda cls, body: cls()))


def acknowledged_before_it_is_saved(patch: pytest.MonkeyPatch) -> None:
    real = substreams.Agent.receive

    def receive(self: substreams.Agent, message: str) -> None:
        real(self, message)
        for report in self._unsaved:
            self._ack(self._world.tasks[report.node], report.epoch)

    patch.setattr(substreams.Agent, "receive", receive)


def closed_before_the_last_emission(patch: pytest.MonkeyPatch) -> None:
    """A closing counts when it is heard of, although reports before it are missing."""
    real = Tracker.apply

    def apply(self: Tracker, report: Report) -> Verdict:
        verdict = real(self, report)
        if verdict is Verdict.EARLY:
            for change in report.changes:
                if change.closed and not self.ended(change.label):
                    self._change(report.node, replace(change, number=0, emitted=0))
        return verdict

    patch.setattr(Tracker, "apply", apply)


def messages_counted_instead_of_told_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Sum, "nothing_in_flight", property(lambda self: self.emitted == self.consumed))


def numbers_without_their_reader(patch: pytest.MonkeyPatch) -> None:
    real = message_numbers._spelled
    patch.setattr(message_numbers, "_spelled", lambda segment: real(segment._replace(reader=Node(""))))
    patch.setattr(_Sum, "nothing_in_flight", property(lambda self: self.number == 0))


def numbers_that_a_replay_does_not_repeat(patch: pytest.MonkeyPatch) -> None:
    real, counter = message_numbers.message_numbers, itertools.count(1)

    def anew(key: bytes, carried: message_numbers.Carried) -> Words:
        return real(key + str(next(counter)).encode(), carried)

    patch.setattr(message_numbers, "message_numbers", anew)


def numbers_of_one_epoch_alike(patch: pytest.MonkeyPatch) -> None:
    real = message_numbers._spelled

    def spelled(segment: Segment) -> bytes:
        return real(segment._replace(position=0))

    patch.setattr(message_numbers, "_spelled", spelled)
    patch.setattr(_Sum, "nothing_in_flight", property(lambda self: self.number == 0))


def ends_in_no_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tracker, "_is_below", lambda self, stage, holding: False)


def one_source_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tracker, "_is_quiet", lambda self, known: known.nothing_in_flight and bool(known.closed))


def forwarded_after_the_first_input(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Punctuations, "_has_read_all", lambda self, passage, node: bool(passage.read.get(node)))


def punctuations_overtake_rows(patch: pytest.MonkeyPatch) -> None:
    real = substreams._Epoch._put

    def put(self: substreams._Epoch, entry: substreams.Entry, reader: Node) -> None:
        real(self, entry, reader)
        if entry.segment is None:
            channel = self._world.tasks[reader].inbox[entry.sender]
            channel.insert(0, channel.pop())

    patch.setattr(substreams._Epoch, "_put", put)


TRACKER_BUGS = (
    reports_applied_twice, reports_applied_out_of_order, tokens_ignored, state_forgotten_at_a_crash,
    heads_forgotten_at_a_crash, acknowledged_before_it_is_saved, closed_before_the_last_emission, messages_counted_instead_of_told_apart,
    numbers_without_their_reader, numbers_that_a_replay_does_not_repeat, numbers_of_one_epoch_alike,
    ends_in_no_order, one_source_is_enough,
)  # fmt: skip
PUNCTUATION_BUGS = (forwarded_after_the_first_input, punctuations_overtake_rows)


@everything
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
@pytest.mark.parametrize(
    ("by", "plant"),
    [("tracker", plant) for plant in TRACKER_BUGS] + [("punctuation", plant) for plant in PUNCTUATION_BUGS],
)
def test_a_planted_bug_is_found(
    by: str, plant: Plant, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker may refuse the reports that a bug leads to; unguarded, the checker has to see it by itself."""
    plant(monkeypatch)
    if not guarded:
        for kind in (Tracker, Punctuations):
            monkeypatch.setattr(kind, "_check", lambda self, report, change: None)
    for seed in range(PLANTED_SEEDS_MAX):
        try:
            substreams.run(seed, by=by)
        except Violation as found:
            print(f"{plant.__name__}: seed {seed}: {str(found).partition(chr(10))[0]}")
            assert f"seed {seed}: {by}" in str(found)
            return
    raise AssertionError(f"{plant.__name__} was not found in {PLANTED_SEEDS_MAX} schedules")
