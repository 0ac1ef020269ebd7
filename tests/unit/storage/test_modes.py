"""Who may look into what Holdfast makes: a work directory is its user's alone, and no name can be taken by others first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.bench.data import default_directory
from holdfast.core.errors import LedgerError, StorageError
from holdfast.ledger.location import found
from holdfast.storage import workdir


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_work_directory_is_made_for_its_user_and_what_is_above_it_as_always(tmp_path: Path) -> None:
    root = workdir.prepare(tmp_path / "work" / "orders")
    assert mode(root) == 0o700
    assert mode(root.parent) == 0o755


def test_a_work_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(0o750)
    assert mode(workdir.prepare(tmp_path / "work")) == 0o750


def test_a_work_directory_of_another_user_is_refused_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(LedgerError, match=r"may not be read.*chmod"):
        found(tmp_path)


def test_benchmarks_take_no_directory_that_others_may_have_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = default_directory()
    assert mode(made) == 0o700
    assert default_directory() == made
    made.chmod(0o777)
    with pytest.raises(StorageError, match="others have put there"):
        default_directory()
    made.rmdir()
    made.symlink_to(tmp_path)
    with pytest.raises(StorageError, match="others have put there"):
        default_directory()
