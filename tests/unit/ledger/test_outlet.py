"""Readers from outside see of a stage what may leave it."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from captured_state import captured
from holdfast.ledger import schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import reading
from holdfast.ledger.readers import outlet
from holdfast.ledger.snapshot_report import listed
from holdfast.ledger.status import status
from written_state import WrittenState


def test_of_a_region_they_see_what_a_complete_snapshot_covers(work: Path) -> None:
    flow = captured(work)
    with flow.ledger.read() as tx:
        assert (stage_row(tx, "means").head, outlet(tx, "means").head) == (3, 2)


def test_of_a_stage_outside_they_see_all_that_is_committed(work: Path) -> None:
    flow = WrittenState(work)
    flow.discover(1)
    flow.commit({"ann": (1.0, 1)})
    with flow.ledger.read() as tx:
        assert outlet(tx, "means").head == 0


def test_a_ledger_without_the_tables_of_snapshots_can_be_looked_at(work: Path) -> None:
    """An older Holdfast of the same format made none, and whoever only looks makes nothing."""
    flow = WrittenState(work)
    flow.discover(1)
    flow.commit({"ann": (1.0, 1)})
    with flow.ledger.unfenced_write() as tx:
        for table in (schema.regions, schema.snapshots, schema.snapshot_parts):
            tx.execute(sa.schema.DropTable(table))
    with reading(work) as tx:
        assert outlet(tx, "means").head == 0
    assert status(work)["snapshots"] is None
    assert listed(work)["snapshots"] == []
