"""State is read at one committed epoch, in bounded parts, whatever merges and sweeps happen meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core import limits
from holdfast.core.errors import LedgerError, StorageError
from holdfast.runtime.snapshot import Snapshot, look, snapshot_of
from holdfast.state.run import forget_open_runs
from registered import register_stage
from written_state import VIEW, WrittenState


@pytest.fixture
def written(work: Path) -> WrittenState:
    made = WrittenState(work)
    made.discover(*[1] * 10)
    return made


def means(snapshot: Snapshot) -> dict[str | None, float | None]:
    table = pa.concat_tables([VIEW.schema.empty_table(), *snapshot.rows()])
    return dict(zip(table["user"].to_pylist(), table["mean"].to_pylist(), strict=True))


def test_the_newest_epoch_is_read_with_finished_values_and_null_keys(written: WrittenState) -> None:
    written.commit({"ann": (6.0, 3), None: (1.0, 2)})
    written.commit({"ann": (10.0, 4), "bob": (0.0, 0)})
    snapshot, found = look(written.root, "means", None, means)
    assert snapshot.epoch == 1
    assert found == {"ann": 2.5, None: 0.5, "bob": None}


def test_an_older_epoch_is_read_while_its_layers_are_there(written: WrittenState) -> None:
    for count in (1, 2, 3, 4):
        written.commit({"ann": (12.0, count)})
    assert look(written.root, "means", 1, means)[1] == {"ann": 6.0}
    written.merge(0, 2)
    assert look(written.root, "means", 1, means)[1] == {"ann": 6.0}
    written.sweep(0, 2)
    with pytest.raises(StorageError, match=r"no longer kept.*Still kept: 2, 3\."):
        look(written.root, "means", 1, means)
    assert look(written.root, "means", 2, means)[1] == {"ann": 4.0}


def test_epochs_that_never_were_are_refused(written: WrittenState) -> None:
    assert look(written.root, "means", None, means)[1] == {}
    with pytest.raises(LedgerError, match="no epoch 3: no epoch is committed yet"):
        snapshot_of(written.root, "means", 3)
    written.commit({"ann": (1.0, 1)})
    with pytest.raises(LedgerError, match="no epoch 3: the newest epoch is 0"):
        snapshot_of(written.root, "means", 3)


def test_what_the_watermark_closed_does_not_show(written: WrittenState) -> None:
    written.commit({"ann": (1.0, 1)}, bucket=60_000_000)
    written.commit({"bob": (1.0, 1)}, bucket=120_000_000, watermark_us=60_000_000)
    assert look(written.root, "means", None, means)[1] == {"bob": 1.0}
    assert look(written.root, "means", 0, means)[1] == {"ann": 1.0}


def test_files_swept_under_a_reader_make_it_start_over(written: WrittenState) -> None:
    for count in (1, 2, 3):
        written.commit({"ann": (12.0, count), "bob": (1.0, count)})
    tries = []

    def sweep_then_read(snapshot: Snapshot) -> dict[str | None, float | None]:
        tries.append(len(snapshot.layers))
        if len(tries) == 1:
            written.merge(0, 2)
            written.sweep(0, 2)
            forget_open_runs()
        return means(snapshot)

    snapshot, found = look(written.root, "means", None, sweep_then_read)
    assert tries == [3, 1]
    assert (snapshot.epoch, found["ann"]) == (2, 4.0)


def test_a_file_that_is_lost_and_not_swept_is_told_as_such(written: WrittenState) -> None:
    written.commit({"ann": (1.0, 1)})
    (path,) = (written.root / "data").rglob("*.arrow")
    path.unlink()
    forget_open_runs()
    with pytest.raises(StorageError, match=r"a file of the state is lost: data/.*Run the flow") as told:
        look(written.root, "means", None, means)
    assert (told.value.stage, told.value.epoch) == ("means", 0)


def test_only_the_parts_that_a_limit_needs_are_read(
    written: WrittenState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_READ_ROWS_MAX", 10)
    written.commit({f"user {n}": (1.0, 1) for n in range(200)})
    snapshot = snapshot_of(written.root, "means", None)
    assert len(snapshot.ranges) > 10
    read: list[int] = []
    original = Snapshot.read

    def counting(self: Snapshot, slots: tuple[int, int]) -> pa.Table:
        rows = original(self, slots)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(Snapshot, "read", counting)
    assert sum(part.num_rows for part in snapshot.rows(15)) == 15
    assert sum(read) < 60
    read.clear()
    assert sum(part.num_rows for part in snapshot.rows()) == 200
    assert max(read) < 60


def test_columns_can_be_chosen(written: WrittenState) -> None:
    written.commit({"ann": (1.0, 1)})
    (rows,) = snapshot_of(written.root, "means", None).only(["mean", "user"]).rows()
    assert rows.to_pylist() == [{"mean": 1.0, "user": "ann"}]


def test_state_that_cannot_be_read_says_why(work: Path) -> None:
    written = WrittenState(work)
    with pytest.raises(LedgerError, match=r"no stage 'mean'.*Its stages are means\."):
        snapshot_of(work, "mean", None)
    register_stage(written.ledger, written.generation, "plain", None, [])
    with pytest.raises(LedgerError, match="keeps no state"):
        snapshot_of(work, "plain", None)
    register_stage(written.ledger, written.generation, "old", {"operator": "x"}, [])
    with pytest.raises(LedgerError, match=r"older Holdfast.*holdfast run FLOW --until-idle"):
        snapshot_of(work, "old", None)


def test_a_work_directory_of_before_views_gets_them_with_the_next_run(work: Path) -> None:
    with WrittenState(work).ledger.unfenced_write() as tx:
        tx.exec_driver_sql("drop table state_views")
    with pytest.raises(LedgerError, match="older Holdfast"):
        snapshot_of(work, "means", None)
    WrittenState(work)
    assert look(work, "means", None, means)[1] == {}


def test_a_view_survives_the_ledger() -> None:
    again = type(VIEW).from_json(VIEW.to_json())
    assert (again.columns, again.keeps_us) == (VIEW.columns, VIEW.keeps_us)
    assert again.state.agrees_with(VIEW.state)
