"""Items that were mended, and what a stage that is new begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import epochs, holder, inputs
from holdfast.ledger.epochs import Commit
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.status import status
from registered import register_stage

OLD = [Item(name, 10, 100, {"bytes": 100}) for name in ("a", "b", "c")]
NEW = Item("b", 11, 110, {"bytes": 110})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path)
    assert holder.take(opened, "flow") == 1
    register_stage(opened, 1, "totals", None, ["source:in"])
    inputs.add_items(opened, 1, {"in": OLD})
    yield opened
    opened.close()


def plan(ledger: Ledger, start: int, stop: int, *, commit: bool) -> None:
    with ledger.read() as tx:
        row = epochs.own_row(tx, "totals", 1)
    row, attempt = epochs.record_plan(ledger, row, {"ranges": {"source:in": [start, stop]}})
    if commit:
        moves = {"source:in": (start, stop)}
        epochs.commit_epoch(ledger, Commit(row, row.head + 1, attempt, {}, None, {}, moves))


def open_plan(ledger: Ledger) -> object:
    with ledger.read() as tx:
        return epochs.open_plan(tx, epochs.stage_row(tx, "totals"))


def test_an_item_that_no_committed_epoch_has_read_can_be_described_anew(ledger: Ledger) -> None:
    plan(ledger, 0, 1, commit=True)
    plan(ledger, 1, 3, commit=False)
    with ledger.read() as tx:
        assert inputs.unread_by_all(tx, "in") == {1: OLD[1], 2: OLD[2]}
    inputs.replace_items(ledger, 1, "in", {1: NEW})
    with ledger.read() as tx:
        assert inputs.items(tx, "in", 0, 3) == [OLD[0], NEW, OLD[2]]
    assert open_plan(ledger) is None, "the plan counted on the item as it was"


def test_plans_that_end_before_a_mended_item_stay(ledger: Ledger) -> None:
    plan(ledger, 0, 1, commit=False)
    inputs.replace_items(ledger, 1, "in", {1: NEW})
    assert open_plan(ledger) is not None


def test_an_item_that_was_read_and_an_old_generation_are_refused(ledger: Ledger) -> None:
    plan(ledger, 0, 2, commit=True)
    with pytest.raises(LedgerError, match="an epoch has read items"):
        inputs.replace_items(ledger, 1, "in", {1: NEW})
    with pytest.raises(FencedError):
        inputs.replace_items(ledger, 0, "in", {2: NEW})


def test_an_item_that_any_stage_has_read_is_read(ledger: Ledger) -> None:
    register_stage(ledger, 1, "slow", None, ["source:in", "source:in#quarantine"])
    plan(ledger, 0, 2, commit=True)
    with ledger.read() as tx:
        assert list(inputs.unread_by_all(tx, "in")) == [2]


def test_a_quarantine_that_is_new_begins_where_the_source_was_read_to(ledger: Ledger) -> None:
    plan(ledger, 0, 2, commit=True)
    register_stage(ledger, 1, "in-quarantine", None, ["source:in#quarantine"])
    register_stage(ledger, 1, "other", None, ["source:in"])
    with ledger.read() as tx:
        assert inputs.processed(tx, "stage:in-quarantine", "source:in#quarantine") == 2
        assert inputs.processed(tx, "stage:other", "source:in") == 0


def test_status_counts_what_was_refused_and_says_why(ledger: Ledger, tmp_path: Path) -> None:
    refused = [Item(f"r{n:02d}", None, 5, {"bytes": 5, "refused": f"reason {n}"}) for n in range(12)]
    inputs.add_items(ledger, 1, {"in": refused})
    found = status(tmp_path)["sources"]["in"]
    assert (found["items"], found["rows"], found["refused"]["items"]) == (15, 30, 12)
    assert len(found["refused"]["newest"]) == 10
    assert found["refused"]["newest"]["r11"] == "reason 11"
