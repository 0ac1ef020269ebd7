"""A report on substreams becomes true with the commit that it belongs to, once, and survives with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.errors import FencedError, FlowError, HoldfastError, StateSchemaError
from holdfast.core.json import Json
from holdfast.ledger import epochs, holder, inputs, schema, starts, substreams
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.substream_list import substreams as listed
from holdfast.protocols.substreams import Change, Graph, Node, Report, Stage
from registered import register_stage

XOR, PUNCTUATION = "xor", "punctuation"
SINK = "sink:out"
GRAPH = Graph({"in": Stage(), "mid": Stage(("in",)), SINK: Stage(("mid",))})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


class Stand:
    """Two stages and a sink, whose commits say what the test wants them to."""

    def __init__(self, ledger: Ledger, tracker: str = XOR) -> None:
        self.ledger = ledger
        self.generation = holder.take(ledger, "flow")
        for stage, origin in (("in", "source:rows"), ("mid", "channel:in.out")):
            register_stage(ledger, self.generation, stage, None, [origin])
        with ledger.write(self.generation) as tx:
            starts.add_cursor(tx, SINK, "channel:mid.out", 0)
            substreams.register_scope(tx, "in", tracker, GRAPH)

    def row(self, stage: str) -> StageRow:
        with self.ledger.read() as tx:
            return epochs.stage_row(tx, stage)

    def prepared(self, stage: str, *changes: Change, sent: Json | None = None) -> Commit:
        row, attempt = epochs.record_plan(self.ledger, self.row(stage), {"ranges": {}})
        epoch = row.head + 1
        report = Report(0, Node(stage), epoch, epoch - 1, changes).to_json()
        told = {"scope": "in", "report": report, "sent": sent or {}}
        return Commit(row, epoch, attempt, {"rows_out": {}, "substreams": told}, None, {}, {})

    def commit(self, stage: str, *changes: Change, sent: Json | None = None) -> None:
        epochs.commit_epoch(self.ledger, self.prepared(stage, *changes, sent=sent))

    def publish(self, epoch: int) -> None:
        """What the loop of the sink does after an epoch."""
        inputs.move_cursor(
            self.ledger,
            self.generation,
            SINK,
            "channel:mid.out",
            epoch,
            epoch + 1,
            lambda tx: substreams.report_of_sink(tx, "in", SINK, "mid", 0, epoch),
        )

    def states(self) -> dict[str, bool]:
        """By label, whether it has ended."""
        with self.ledger.read() as tx:
            found = tx.execute(sa.select(schema.substreams)).all()
        return {row.label: row.ended_ms is not None for row in found}

    def stored(self) -> dict[int, Json]:
        with self.ledger.read() as tx:
            return substreams.stored(tx, "in")

    def waiting(self) -> substreams.Waiting:
        with self.ledger.read() as tx:
            return substreams.waiting(tx, "in")


def through(stand: Stand, label: str) -> None:
    """One label from its source through a stage that holds it, up to its final emission."""
    stand.commit("in", Change(label, 0xA, emitted=1, closed=True), sent={"mid": {label: ["0a", 1]}})
    stand.commit("mid", Change(label, 0xA, consumed=1, holds=True))
    stand.commit("mid", Change(label, 0xB, emitted=1), sent={SINK: {label: ["0b", 1]}})


def test_a_substream_ends_with_the_cursor_of_its_last_sink(ledger: Ledger) -> None:
    stand = Stand(ledger)
    through(stand, "monday")
    stand.publish(0)  # holds nothing of it
    assert stand.states() == {"monday": False}
    stand.publish(1)
    assert stand.states() == {"monday": True}
    assert all(not body["open"] and not body["ended"] for body in stand.stored().values())


def test_who_is_due_is_told_in_graph_order(ledger: Ledger) -> None:
    stand = Stand(ledger)
    stand.commit("in", Change("monday", 0xA, emitted=1))
    assert stand.waiting() == substreams.Waiting({"in": ("monday",)}, frozenset())
    stand.commit("mid", Change("monday", 0xA, consumed=1, holds=True))
    stand.commit("in", Change("monday", closed=True))
    assert stand.waiting() == substreams.Waiting({"mid": ("monday",)}, frozenset({"mid"}))


def test_a_commit_whose_reply_was_lost_reports_once(ledger: Ledger) -> None:
    stand = Stand(ledger)
    commit = stand.prepared("in", Change("monday", 0xA, emitted=1))
    epochs.commit_epoch(ledger, commit)
    before = stand.stored()
    epochs.commit_epoch(ledger, commit)
    assert stand.stored() == before


def test_the_loser_of_a_race_and_a_zombie_report_nothing(ledger: Ledger) -> None:
    stand = Stand(ledger)
    winner = stand.prepared("in", Change("monday", 0xA, emitted=1))
    loser = Commit(
        winner.stage, 0, epochs.open_attempt(ledger, winner.stage, "epoch", 0), winner.manifest, None, {}, {}
    )
    epochs.commit_epoch(ledger, winner)
    before = stand.stored()
    with pytest.raises(FencedError):
        epochs.commit_epoch(ledger, loser)
    zombie = stand.prepared("in", Change("monday", 0xC, emitted=1))
    holder.take(ledger, "flow", by_force=True)
    with pytest.raises(FencedError):
        epochs.commit_epoch(ledger, zombie)
    assert stand.stored() == before


def test_a_cursor_that_has_moved_already_reports_nothing(ledger: Ledger) -> None:
    stand = Stand(ledger)
    through(stand, "monday")
    through(stand, "tuesday")
    stand.publish(0)
    stand.publish(1)
    before = stand.stored(), stand.states()
    stand.publish(1)
    assert (stand.stored(), stand.states()) == before


def test_a_report_that_breaks_the_rules_takes_its_commit_with_it(ledger: Ledger) -> None:
    stand = Stand(ledger)
    with pytest.raises(HoldfastError, match="emits or holds 'monday' without having had any of it"):
        stand.commit("mid", Change("monday", 0xA, emitted=1))
    assert stand.row("mid").head == -1
    assert stand.states() == {}


def test_with_punctuations_a_sink_closes_what_it_has_read_the_end_of(ledger: Ledger) -> None:
    stand = Stand(ledger, PUNCTUATION)
    stand.commit("in", Change("monday"))
    stand.commit("in", Change("monday", closed=True))
    stand.commit("mid", Change("monday", ends=(Node("in"),)))
    assert stand.waiting().due == {"mid": ("monday",)}
    stand.commit("mid", Change("monday", closed=True))
    stand.publish(0)
    assert stand.states() == {"monday": False}
    stand.publish(1)
    assert stand.states() == {"monday": True}


def test_an_epoch_without_labels_costs_no_row(ledger: Ledger) -> None:
    stand = Stand(ledger)
    stand.commit("in")
    stand.commit("mid")
    stand.publish(0)
    assert stand.stored() == {}


def test_a_report_touches_only_the_shards_of_its_labels(ledger: Ledger) -> None:
    stand = Stand(ledger)
    labels = [f"day {number}" for number in range(100)]
    stand.commit("in", *(Change(label, 0xA, emitted=1) for label in labels))
    assert len(stand.stored()) == limits.SUBSTREAM_SHARDS
    before = stand.stored()
    stand.commit("in", Change("day 7", closed=True))
    changed = [shard for shard, body in stand.stored().items() if body != before[shard]]
    assert len(changed) == 1


def test_ended_substreams_are_forgotten_the_oldest_first(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUBSTREAMS_ENDED_MAX", 3)
    stand = Stand(ledger)
    for number in range(6):
        through(stand, f"day {number}")
        stand.publish(2 * number)
        stand.publish(2 * number + 1)
    assert set(stand.states()) == {"day 3", "day 4", "day 5"}


def test_too_many_open_substreams_stop_the_flow(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSTREAMS_OPEN_MAX", 2)
    stand = Stand(ledger)
    with pytest.raises(FlowError, match="3 substreams are open, more than 2"):
        stand.commit("in", *(Change(str(number), 0xA, emitted=1) for number in range(3)))


def test_a_name_may_come_again_after_its_end(ledger: Ledger) -> None:
    stand = Stand(ledger)
    through(stand, "monday")
    stand.publish(0)
    stand.publish(1)
    stand.commit("in", Change("monday", 0xD, emitted=1))
    assert stand.states() == {"monday": False}


def test_stages_and_trackers_do_not_change_under_substreams(ledger: Ledger) -> None:
    stand = Stand(ledger)
    more = Graph({**GRAPH.stages, "sink:more": Stage(("in",))})
    other = Graph({**GRAPH.stages, "third": Stage(("in",))})
    with ledger.write(stand.generation) as tx:
        substreams.register_scope(tx, "in", XOR, other)  # nothing has begun
        substreams.register_scope(tx, "in", XOR, GRAPH)
    stand.commit("in", Change("monday", 0xA, emitted=1))
    for tracker, graph in ((XOR, more), (XOR, other), (PUNCTUATION, GRAPH)):
        with pytest.raises(StateSchemaError, match="1 are open"), ledger.write(stand.generation) as tx:
            substreams.register_scope(tx, "in", tracker, graph)


def test_a_sink_may_come_when_nothing_is_open(ledger: Ledger) -> None:
    stand = Stand(ledger)
    through(stand, "monday")
    stand.publish(0)
    stand.publish(1)
    with ledger.write(stand.generation) as tx:
        substreams.register_scope(tx, "in", XOR, Graph({**GRAPH.stages, "sink:more": Stage(("in",))}))
    with pytest.raises(StateSchemaError, match="0 are open"), ledger.write(stand.generation) as tx:
        substreams.register_scope(tx, "in", XOR, Graph({**GRAPH.stages, "third": Stage(("in",))}))


def test_the_list_says_what_open_substreams_wait_for(ledger: Ledger, tmp_path: Path) -> None:
    stand = Stand(ledger)
    through(stand, "monday")
    stand.publish(0)
    stand.publish(1)
    stand.commit("in", Change("tuesday", 0xA, emitted=1))
    found = listed(tmp_path, None, 10)
    assert (found["flow"], found["open"], found["closed"]) == ("flow", 1, 1)
    monday, tuesday = found["substreams"]
    assert (monday["label"], monday["state"], monday["in_flight"]) == ("monday", "closed", 0)
    assert monday["ended"] is not None
    assert (tuesday["not_closed_by"], tuesday["in_flight"], tuesday["held_by"]) == (["in"], 1, [])
    assert [one["label"] for one in listed(tmp_path, "open", 10)["substreams"]] == ["tuesday"]
    assert [one["label"] for one in listed(tmp_path, "closed", 10)["substreams"]] == ["monday"]
    assert [one["label"] for one in listed(tmp_path, None, 1)["substreams"]] == ["tuesday"]
