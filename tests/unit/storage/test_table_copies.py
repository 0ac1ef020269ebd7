"""A copy of a table goes when no plan names it, and not before; what is under way stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core.json import Json
from holdfast.ledger import epochs, files, schema
from holdfast.ledger.epochs import StageRow
from holdfast.storage.checksums import fault
from holdfast.storage.table_copies import sweep_copies, version_of, write_copy
from written_state import WrittenState


class Enriched:
    """A stage with plans that name copies."""

    def __init__(self, root: Path) -> None:
        self.written = WrittenState(root)
        self.root = root
        with self.written.ledger.read() as tx:
            self.row = epochs.stage_row(tx, "means")

    def copy(self, epoch: int) -> Json:
        return write_copy(self.root, "means", "t", epoch, 1, b"rows")

    def plan(self, epoch: int, file: Json | None) -> None:
        body: Json = {"ranges": {}, "skip": True} if file is None else {"ranges": {}, "tables": {"t": file}}
        values = {"stage": "means", "branch": self.row.branch, "epoch": epoch, "version": 1, "body": body}
        with self.written.ledger.write(self.written.generation) as tx:
            tx.execute(sa.insert(schema.plans).values(values))

    def forget_below(self, epoch: int) -> None:
        files.fold_history(self.written.ledger, self.row, epoch)

    def swept(self, *mirrors: Path) -> set[str]:
        """What is left."""
        sweep_copies(self.written.ledger, self.root, mirrors, StageRow("means", self.row.branch, 0, 0, 0))
        return {f"tables/means/{path.name}" for path in (self.root / "tables" / "means").iterdir()}


@pytest.fixture
def enriched(tmp_path: Path) -> Iterator[Enriched]:
    found = Enriched(tmp_path / "work")
    with closing(found.written.ledger):
        yield found


def test_a_copy_is_what_a_plan_says_of_it(enriched: Enriched) -> None:
    file = enriched.copy(3)
    assert fault(enriched.root, file, deep=True) is None
    assert file["version"] == version_of(b"rows")
    assert enriched.copy(3)["path"] != file["path"]


def test_a_copy_stays_as_long_as_a_kept_plan_names_it(enriched: Enriched, tmp_path: Path) -> None:
    first, second = enriched.copy(0), enriched.copy(2)
    for epoch, file in enumerate([first, first, second, None, second]):
        enriched.plan(epoch, file)
    mirror = tmp_path / "mirror"
    (mirror / first["path"]).parent.mkdir(parents=True)
    (mirror / first["path"]).write_bytes(b"rows")
    of_another_flow = (mirror / first["path"]).with_name("00000000-0000-t.parquet")
    of_another_flow.write_bytes(b"rows")
    both = {first["path"], second["path"]}
    assert enriched.swept(mirror) == both
    enriched.forget_below(1)
    assert enriched.swept(mirror) == both
    enriched.forget_below(2)
    assert enriched.swept(mirror) == {second["path"]}
    assert not (mirror / first["path"]).exists()
    assert of_another_flow.exists()
    # The oldest plan that is kept skips an epoch, and names nothing.
    enriched.forget_below(3)
    assert enriched.swept() == {second["path"]}


def test_a_copy_that_a_plan_is_about_to_name_stays(enriched: Enriched) -> None:
    old = enriched.copy(0)
    enriched.plan(0, old)
    fresh, replacing = enriched.copy(1), enriched.copy(0)
    assert enriched.swept() == {old["path"], fresh["path"], replacing["path"]}


def test_a_copy_that_no_plan_came_to_name_goes_when_its_time_has_passed(enriched: Enriched) -> None:
    stray, named = enriched.copy(1), enriched.copy(1)
    for epoch in (1, 2):
        enriched.plan(epoch, named)
    enriched.forget_below(2)
    assert enriched.swept() == {named["path"]}
    assert stray["path"] != named["path"]


def test_copies_of_a_stage_that_is_enriched_no_more_go_with_their_plans(enriched: Enriched) -> None:
    enriched.plan(0, enriched.copy(0))
    enriched.plan(1, None)
    assert len(enriched.swept()) == 1
    enriched.forget_below(1)
    assert enriched.swept() == set()
