"""What a stage with gap() gives up is read as nothing, and its plan says so."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from holdfast.ledger import epochs, files, holder, schema, skips
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.script import Script, recorded
from registered import register_stage


def three_epochs(ledger: Ledger) -> StageRow:
    """A stage with two ports whose epochs 0 to 2 nobody has read."""
    generation = holder.take(ledger, "flow")
    register_stage(ledger, generation, "s", None, ["source:in"])
    with ledger.read() as tx:
        row = epochs.stage_row(tx, "s")
    for epoch in range(3):
        ranges = {"source:in": (epoch, epoch + 1)}
        row, attempt = epochs.record_plan(ledger, row, {"ranges": ranges})
        segments = {port: {"rows": 7, "bytes": 5, "files": []} for port in ("out", "late")}
        manifest = {"rows_out": {"out": 7, "late": 7}}
        row = epochs.commit_epoch(ledger, Commit(row, epoch, attempt, manifest, None, segments, ranges))
    return row


def ids_of(ledger: Ledger, epoch: int, *ports: str) -> list[int]:
    table = schema.segments
    with ledger.read() as tx:
        found = sa.select(table.c.id).where(table.c.epoch == epoch, table.c.port.in_(ports))
        return list(tx.execute(found).scalars())


def test_rows_that_are_given_up_are_counted_and_said_in_the_plan(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    row = three_epochs(ledger)
    lost = [*ids_of(ledger, 0, "out", "late"), *ids_of(ledger, 2, "out")]
    files.mark_lost(ledger, row, [], lost, "the power went")
    assert skips.give_up_segments(ledger, row) == 2
    table = schema.segments
    with ledger.read() as tx:
        kept = sa.select(table.c.epoch, table.c.port).where(table.c.rows > 0, table.c.status == "live")
        assert {tuple(found) for found in tx.execute(kept)} == {(1, "out"), (1, "late"), (2, "late")}
        events = schema.events
        said = tx.execute(sa.select(events.c.reason).where(events.c.kind == "skipped")).scalar_one()
    assert said.startswith("21 rows that epochs 0 to 2")
    script = Script({}, recorded(ledger))
    assert [sorted(script.given_up("s", epoch)) for epoch in range(4)] == [["late", "out"], [], ["out"], []]


def test_what_is_lost_later_is_added_to_what_was_lost_before(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    row = three_epochs(ledger)
    for port in ("out", "late"):
        files.mark_lost(ledger, row, [], ids_of(ledger, 1, port), "the power went")
        skips.give_up_segments(ledger, row)
    assert skips.give_up_segments(ledger, row) == 0
    assert sorted(Script({}, recorded(ledger)).given_up("s", 1)) == ["late", "out"]


def test_a_run_without_a_script_gives_up_nothing_by_it() -> None:
    assert not Script().given_up("s", 0)
