"""What is done to files is what it says, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.verify import damage, power

BODY = bytes(range(1, 251)) * 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for number in range(3):
        path = tmp_path / "work" / "data" / "totals" / str(number) / "run.arrow"
        path.parent.mkdir(parents=True)
        path.write_bytes(BODY)
    return tmp_path / "work"


def bodies(work: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((work / "data").rglob("*")) if path.is_file()]


@pytest.mark.parametrize(("how", "left"), [("missing", [BODY] * 2), ("truncated", [BODY[:2500], BODY, BODY])])
def test_one_file_is_hurt_and_the_others_are_not(work: Path, how: str, left: list[bytes]) -> None:
    assert damage.hurt(work, how, seed=1)
    assert sorted(bodies(work), key=len) == left


def test_nothing_can_be_hurt_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert not damage.hurt(tmp_path, "missing", seed=1)
    assert not damage.lose_machine(tmp_path)


def test_the_loss_of_the_machine_leaves_the_ledger_alone(work: Path) -> None:
    (work / "ledger.db").write_bytes(b"ledger")
    assert damage.lose_machine(work)
    assert [path.name for path in work.iterdir()] == ["ledger.db"]


def test_an_older_ledger_takes_the_place_of_the_newer_one_whole(work: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "ledger.db").write_bytes(b"old")
    for name in ("ledger.db", "ledger.db-wal"):
        (work / name).write_bytes(b"new")
    damage.set_back(work, older)
    assert (work / "ledger.db").read_bytes() == b"old"
    assert not (work / "ledger.db-wal").exists()


def test_a_database_is_locked_while_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("create table t (n)")
        assert not damage.is_locked(path)
        database.execute("begin immediate")
        assert damage.is_locked(path)
    assert not damage.is_locked(tmp_path / "none.db")


def test_a_power_cut_takes_what_was_not_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, log = tmp_path / "home", tmp_path / "fsyncs"
    home.mkdir()
    monkeypatch.setattr(os, "fsync", os.fsync)
    power.note_what_is_fsynced(log)
    safe, torn, nameless = (home / name for name in ("safe", "torn", "nameless"))
    for path in (safe, torn):
        path.write_bytes(BODY)
    for path in (safe, home):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    nameless.write_bytes(BODY)
    assert power.cut(home, log) == [nameless, torn]
    assert (safe.read_bytes(), torn.read_bytes(), nameless.exists()) == (BODY, BODY[:2500], False)
