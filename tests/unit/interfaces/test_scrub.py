"""`scrub` checks all files on all tiers, says what is wrong and what becomes of it, and marks what can be mended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from command import holdfast
from holdfast.ledger import epochs, files, schema
from holdfast.storage import checksums
from holdfast.storage.table_copies import write_copy
from unit.state.test_bit_flips import flip
from written_state import WrittenState


@pytest.fixture
def written(work: Path) -> WrittenState:
    made = WrittenState(work)
    made.discover(2, 1, 40)
    made.commit({"ann": (6.0, 3), None: (1.0, 2)})
    made.commit({"bob": (0.0, 0)})
    with checksums.switched(False):
        made.commit({"old": (0.0, 0)})
    return made


def runs(written: WrittenState) -> list[Path]:
    with written.ledger.read() as tx:
        layers = files.live_layers(tx, epochs.stage_row(tx, "means"))
    return [written.root / layer.runs[0]["path"] for layer in layers]


def test_whole_files_are_counted_and_old_ones_told_of(written: WrittenState) -> None:
    said = holdfast("scrub", "--work-dir", written.root)
    assert said.status == 0
    assert "1 runs were written by an older Holdfast" in said.out
    assert "3 files of " in said.out
    assert "0 of them damaged" in said.out
    found = holdfast("scrub", "--work-dir", written.root, "--json").json
    assert (found["files"], found["unchecked"], found["ledger"], found["damaged"]) == (3, 1, None, [])


@pytest.mark.parametrize("bit", [1, 5000, -3])
@pytest.mark.parametrize("which", [0, 2])
def test_a_damaged_file_is_named_with_what_becomes_of_it(written: WrittenState, which: int, bit: int) -> None:
    path = runs(written)[which]
    flip(path, bit % (path.stat().st_size * 8))
    said = holdfast("scrub", "--work-dir", written.root)
    assert said.status == 1
    assert str(path.relative_to(written.root)) in said.out
    assert "has another checksum" in said.out
    assert "the flow makes it again by replay" in said.out
    assert {path.exists() for path in runs(written)} == {True}  # nothing is marked unless asked for
    said = holdfast("scrub", "--work-dir", written.root, "--repair", "--json")
    (damaged,) = said.json["damaged"]
    assert (damaged["stage"], damaged["first"], damaged["last"], damaged["tier"]) == (
        "means",
        which,
        which,
        "work directory",
    )
    assert (said.status, said.json["marked"]) == (1, 1)
    assert path not in runs(written)
    with written.ledger.read() as tx:
        assert [layer.first for layer in files.lost_layers(tx, epochs.stage_row(tx, "means"))] == [which]
    assert holdfast("scrub", "--work-dir", written.root).status == 0


def test_what_cannot_be_made_again_is_told_and_not_marked(written: WrittenState) -> None:
    with written.ledger.unfenced_write() as tx:
        tx.execute(sa.delete(schema.manifests).where(schema.manifests.c.epoch == 0))
    flip(runs(written)[0], 700)
    said = holdfast("scrub", "--work-dir", written.root, "--repair")
    assert said.status == 1
    assert "cannot be made again" in said.out
    assert len(runs(written)) == 3


def test_mirrors_are_checked_and_mend_each_other(written: WrittenState, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    shutil.copytree(written.root / "data", replica / "data")
    first, second, _ = runs(written)
    flip(first, 700)
    mirrored = replica / second.relative_to(written.root)
    flip(mirrored, 900)
    said = holdfast("scrub", "--work-dir", written.root, "--replica", replica, "--repair", "--json")
    assert {(one["tier"], one["repair"]) for one in said.json["damaged"]} == {
        ("work directory", "mirror"),
        ("replica", "copy"),
    }
    assert said.json["marked"] == 2
    assert mirrored.read_bytes() == second.read_bytes()


def test_a_missing_file_is_damaged_and_a_swept_one_is_not(written: WrittenState) -> None:
    runs(written)[1].unlink()
    assert "is missing" in holdfast("scrub", "--work-dir", written.root).out
    written.merge(0, 0)
    written.sweep(0, 0)
    assert holdfast("scrub", "--work-dir", written.root, "--json").json["damaged"][0]["first"] == 1


def test_a_damaged_copy_of_a_table_is_told_of_and_cannot_be_made_again(written: WrittenState) -> None:
    with written.ledger.read() as tx:
        row = epochs.stage_row(tx, "means")
    copy = write_copy(written.root, "means", "names", row.head + 1, 1, b"rows of a table")
    epochs.record_plan(written.ledger, row, {"ranges": {}, "rows": 0, "tables": {"names": copy}})
    assert holdfast("scrub", "--work-dir", written.root, "--json").json["files"] == 4
    flip(written.root / copy["path"], 9)
    said = holdfast("scrub", "--work-dir", written.root, "--repair", "--json")
    (damaged,) = said.json["damaged"]
    assert (damaged["kind"], damaged["path"], damaged["repair"]) == ("table", copy["path"], "none")
    assert said.json["marked"] == 0
