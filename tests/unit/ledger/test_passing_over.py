"""Positions without rows are passed over under the fence; what is offered lies behind any number of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import epochs, holder, inputs, stages
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.offers import OFFERS_MAX, Offered, first_gone, offered_epochs, offered_items
from holdfast.ledger.snapshots import set_region
from holdfast.ledger.unread import Unread, all_unread
from holdfast.storage.shipper import Route, ship
from registered import register_stage

MANY = OFFERS_MAX + 500


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A stage that reads a source, and one that reads it and the source."""
    made = Ledger(tmp_path)
    generation = holder.take(made, "flow")
    register_stage(made, generation, "a", None, ["source:in"])
    register_stage(made, generation, "b", None, ["channel:a.out", "source:in"])
    return made


def row_of(ledger: Ledger, stage: str) -> StageRow:
    with ledger.read() as tx:
        return epochs.stage_row(tx, stage)


def discover(ledger: Ledger, *rows: int | None) -> None:
    with ledger.read() as tx:
        known = inputs.number_of_items(tx, "in")
    items = [Item(str(at), number, 1, {}) for at, number in enumerate(rows, known)]
    inputs.add_items(ledger, row_of(ledger, "a").generation, {"in": items})


def commit(ledger: Ledger, rows: int, reads: tuple[int, int]) -> None:
    """An epoch of the first stage."""
    moves = {"source:in": reads}
    plan = {"ranges": {name: list(at) for name, at in moves.items()}}
    row, attempt = epochs.record_plan(ledger, row_of(ledger, "a"), plan)
    segments = {"out": {"rows": rows, "bytes": 1, "files": []}} if rows else {}
    manifest = {"rows_out": {"out": rows}}
    epochs.commit_epoch(ledger, Commit(row, row.head + 1, attempt, manifest, None, segments, moves))


def offered(ledger: Ledger, stage: str = "a") -> Offered:
    with ledger.read() as tx:
        start = inputs.processed(tx, f"stage:{stage}", "source:in" if stage == "a" else "channel:a.out")
        return offered_items(tx, "in", start) if stage == "a" else offered_epochs(tx, "a", "out", start)


def needed(ledger: Ledger, stage: str, name: str) -> int:
    ship(ledger, Path(), stage, row_of(ledger, stage).generation, Route(disk=False))
    with ledger.read() as tx:
        found = [row for row in tx.execute(stages.schema.cursors.select()).mappings()]
    return next(row["needed"] for row in found if (row["consumer"], row["input"]) == (f"stage:{stage}", name))


def test_cursors_move_without_an_epoch_and_only_from_where_they_are(ledger: Ledger) -> None:
    discover(ledger, 0, 0, 5)
    row = row_of(ledger, "a")
    epochs.pass_over(ledger, row, {"source:in": (0, 2)})
    assert row_of(ledger, "a").head == -1
    assert [unit.position for unit in offered(ledger).units] == [2]
    with pytest.raises(LedgerError, match="does not start at 0"):
        epochs.pass_over(ledger, row_of(ledger, "a"), {"source:in": (0, 2)})


def test_who_planned_from_the_old_position_or_was_replaced_is_refused(ledger: Ledger) -> None:
    discover(ledger, 0)
    row = row_of(ledger, "a")
    epochs.pass_over(ledger, row, {"source:in": (0, 1)})
    with pytest.raises(FencedError):
        epochs.record_plan(ledger, row, {"ranges": {"source:in": [0, 1]}})
    with pytest.raises(FencedError):
        epochs.pass_over(ledger, row, {"source:in": (0, 1)})
    discover(ledger, 0)
    row = row_of(ledger, "a")
    holder.take(ledger, "flow", by_force=True)
    with pytest.raises(FencedError):
        epochs.pass_over(ledger, row, {"source:in": (1, 2)})


def test_an_open_plan_keeps_its_range(ledger: Ledger) -> None:
    discover(ledger, 0, 1)
    row = row_of(ledger, "a")
    epochs.record_plan(ledger, row, {"ranges": {"source:in": [0, 2]}})
    with pytest.raises(FencedError):
        epochs.pass_over(ledger, row, {"source:in": (0, 1)})


def test_what_holds_rows_is_offered_behind_any_number_of_positions_that_hold_none(ledger: Ledger) -> None:
    discover(ledger, *[0] * MANY, 3, 0, None)
    found = offered(ledger)
    assert (found.start, found.empty_until, found.stop) == (0, MANY, MANY + 3)
    assert [(unit.position, unit.rows) for unit in found.units] == [(MANY, 3), (MANY + 1, 0), (MANY + 2, 1)]
    discover(ledger, *[1] * MANY)
    assert len(offered(ledger).units) == OFFERS_MAX


def test_nothing_but_positions_without_rows_is_offered_as_that(ledger: Ledger) -> None:
    discover(ledger, *[0] * MANY)
    assert offered(ledger) == Offered(0, MANY, [])
    assert offered(ledger).empty_until == MANY


def test_epochs_with_rows_are_offered_behind_any_number_of_epochs_without(ledger: Ledger) -> None:
    discover(ledger, *[1] * 31)
    for at in range(30):
        commit(ledger, 0, (at, at + 1))
    with ledger.read() as tx:
        assert offered_epochs(tx, "a", "out", 0, limit=10) == Offered(0, 30, [])
    commit(ledger, 7, (30, 31))
    with ledger.read() as tx:
        found = offered_epochs(tx, "a", "out", 0, limit=10)
    assert (found.empty_until, found.stop, found.rows) == (30, 31, 7)


def test_an_epoch_whose_rows_were_let_go_of_only_looks_empty(ledger: Ledger) -> None:
    discover(ledger, 1, 1)
    commit(ledger, 0, (0, 1))
    commit(ledger, 4, (1, 2))
    with ledger.read() as tx:
        assert first_gone(tx, "a", "out", 0, 2) is None
    with ledger.unfenced_write() as tx:
        tx.execute(stages.schema.segments.delete())
    with ledger.read() as tx:
        assert first_gone(tx, "a", "out", 0, 2) == 1


def test_what_was_passed_over_is_not_needed_any_more(ledger: Ledger) -> None:
    """Also by a stage that has no epoch: so neither files nor history are kept for it."""
    discover(ledger, 0, 0, 2, 0, 0)
    epochs.pass_over(ledger, row_of(ledger, "a"), {"source:in": (0, 2)})
    assert needed(ledger, "a", "source:in") == 2
    commit(ledger, 1, (2, 3))
    assert needed(ledger, "a", "source:in") == 3
    epochs.pass_over(ledger, row_of(ledger, "a"), {"source:in": (3, 5)})
    assert needed(ledger, "a", "source:in") == 5
    discover(ledger, 1)
    epochs.record_plan(ledger, row_of(ledger, "a"), {"ranges": {"source:in": [5, 6]}})
    assert needed(ledger, "a", "source:in") == 5


def test_what_nobody_may_read_yet_is_not_unread(ledger: Ledger) -> None:
    discover(ledger, 1, 0)
    commit(ledger, 4, (0, 1))
    consumers = [("stage:a", "source:in"), ("stage:b", "channel:a.out"), ("sink:none", "channel:a.out")]
    with ledger.read() as tx:
        unread = all_unread(tx, consumers)
    assert unread == [
        Unread("stage:a", "source:in", 1, 2, 0),
        Unread("stage:b", "channel:a.out", 0, 1, 4),
    ]
    assert str(unread[1]) == "stage b has not read epochs 0 to 0 of channel:a.out, with 4 rows"
    with ledger.unfenced_write() as tx:
        set_region(tx, ["a"], ["a"])  # nothing leaves it before a snapshot covers it
    with ledger.read() as tx:
        assert all_unread(tx, consumers[1:]) == []
