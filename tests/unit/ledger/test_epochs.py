"""Commits are fenced, once, gapless, and survive a lost reply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import epochs, holder, inputs, schema
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from registered import register_stage


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def opened(ledger: Ledger) -> StageRow:
    generation = holder.take(ledger, "flow")
    register_stage(ledger, generation, "s", {"keys": "k"}, ["source:in"])
    with ledger.read() as tx:
        return epochs.stage_row(tx, "s")


def commit(row: StageRow, attempt: str, start: int = 0, stop: int = 1) -> Commit:
    layer = {"rows": 1, "bytes": 10, "runs": []}
    segment = {"out": {"rows": 1, "bytes": 5, "files": []}}
    return Commit(
        row, row.head + 1, attempt, {"rows_out": {"out": 1}}, layer, segment, {"source:in": (start, stop)}
    )


def counted(ledger: Ledger) -> dict[str, int]:
    tables = (schema.manifests, schema.layers, schema.segments)
    with ledger.read() as tx:
        return {t.name: tx.execute(sa.select(sa.func.count()).select_from(t)).scalar_one() for t in tables}


def test_an_epoch_is_published_whole(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    after = epochs.commit_epoch(ledger, commit(row, attempt))
    assert after.head == 0
    assert counted(ledger) == {"manifests": 1, "layers": 1, "segments": 1}


def test_zombie_commit_is_refused_and_leaves_no_trace(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    holder.take(ledger, "flow", by_force=True)
    with pytest.raises(FencedError, match="generation 1, .* the ledger has .*generation 2"):
        epochs.commit_epoch(ledger, commit(row, attempt))
    assert counted(ledger) == {"manifests": 0, "layers": 0, "segments": 0}


def test_zombie_can_write_nothing_else_either(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    holder.take(ledger, "flow", by_force=True)
    with pytest.raises(FencedError):
        epochs.record_plan(ledger, row, {"ranges": {}})
    with pytest.raises(FencedError):
        epochs.open_attempt(ledger, row, "epoch", 0)
    with pytest.raises(FencedError):
        epochs.close_attempt(ledger, row, attempt)
    with pytest.raises(FencedError, match="generation 1 was deposed"), ledger.write(1):
        raise AssertionError("the fence let a zombie in")


def test_a_commit_whose_reply_was_lost_is_recognised(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    epochs.commit_epoch(ledger, commit(row, attempt))
    assert epochs.commit_epoch(ledger, commit(row, attempt)).head == 0
    assert counted(ledger)["manifests"] == 1


def test_the_loser_of_a_race_is_refused(ledger: Ledger) -> None:
    row, winner = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    loser = epochs.open_attempt(ledger, row, "epoch", 0)
    epochs.commit_epoch(ledger, commit(row, winner))
    with pytest.raises(FencedError):
        epochs.commit_epoch(ledger, commit(row, loser))
    assert counted(ledger)["manifests"] == 1


def test_a_closed_attempt_cannot_commit(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    epochs.close_attempt(ledger, row, attempt)
    with pytest.raises(FencedError, match="was closed"):
        epochs.commit_epoch(ledger, commit(row, attempt))
    with ledger.read() as tx:
        assert epochs.stage_row(tx, "s").head == -1


def test_a_replaced_plan_cannot_be_committed(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    epochs.record_plan(ledger, row, {"ranges": {}, "new": True})
    with pytest.raises(FencedError, match="plan version 1; the ledger has .*plan version 2"):
        epochs.commit_epoch(ledger, commit(row, attempt))


def test_inputs_must_start_where_the_last_epoch_ended(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    row = epochs.commit_epoch(ledger, commit(row, attempt, 0, 3))
    row, attempt = epochs.record_plan(ledger, row, {"ranges": {}})
    with pytest.raises(LedgerError, match="does not start at 2"):
        epochs.commit_epoch(ledger, commit(row, attempt, 2, 5))
    with ledger.read() as tx:
        assert epochs.stage_row(tx, "s").head == 0


def test_inputs_may_not_start_behind_positions_that_no_epoch_has_read(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    row = epochs.commit_epoch(ledger, commit(row, attempt, 0, 3))
    row, attempt = epochs.record_plan(ledger, row, {"ranges": {}})
    with pytest.raises(LedgerError, match="does not start at 4"):
        epochs.commit_epoch(ledger, commit(row, attempt, 4, 5))
    with ledger.read() as tx:
        assert epochs.stage_row(tx, "s").head == 0
        assert inputs.processed(tx, "stage:s", "source:in") == 3


def test_a_commit_for_another_head_is_refused(ledger: Ledger) -> None:
    row, attempt = epochs.record_plan(ledger, opened(ledger), {"ranges": {}})
    with pytest.raises(FencedError):
        epochs.commit_epoch(ledger, commit(replace(row, head=4), attempt))
