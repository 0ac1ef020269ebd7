"""Files are whole or absent, and nothing is replaced that should not be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import StorageError
from holdfast.storage import atomic


def no_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_renameat2", None)


@pytest.fixture(params=["renameat2", "portable"])
def rename(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """The rename as the kernel offers it, and as it is done where the kernel has no such call."""
    if request.param == "portable":
        no_renameat2(monkeypatch)
    return atomic.rename_without_replacing


def directory(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_text(path.name)
    return path


def test_written_bytes_replace_the_old_ones_and_leave_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    atomic.write_atomic(path, b"old")
    atomic.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_failed_write_leaves_the_old_bytes_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    atomic.write_atomic(path, b"old")
    program = (
        "import resource, sys; from pathlib import Path; from holdfast.core.errors import StorageError\n"
        "from holdfast.storage import atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))\n"
        "try: atomic.write_atomic(Path(sys.argv[1]), b'x' * 100)\n"
        "except StorageError as error: print(error.operation, error.hint)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, path], check=True, capture_output=True, text=True
    ).stdout
    assert said.startswith("write The file is larger")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_missing_directory_is_a_storage_error_with_operation_and_hint(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        atomic.write_atomic(tmp_path / "nowhere" / "file", b"")
    assert caught.value.operation == "write"
    assert caught.value.hint


def test_write_new_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    atomic.write_new(tmp_path / "a", b"first")
    with pytest.raises(atomic.TargetExistsError):
        atomic.write_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    atomic.make_dirs(tmp_path / "a" / "b" / "c")
    atomic.make_dirs(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_link_shares_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"rows")
    atomic.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


def test_a_link_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"rows")
    (tmp_path / "b").write_bytes(b"others")
    with pytest.raises(atomic.TargetExistsError):
        atomic.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"others"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_a_link_is_impossible_the_file_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "a").write_bytes(b"rows")
    (tmp_path / "taken").write_bytes(b"others")

    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    atomic.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"rows"
    with pytest.raises(atomic.TargetExistsError):
        atomic.link_or_copy(tmp_path / "a", tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"others"


def test_other_failures_of_a_link_are_not_hidden_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a").write_bytes(b"rows")
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="No space"):
        atomic.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_rename_moves_files_and_directories(tmp_path: Path, rename) -> None:
    (tmp_path / "file").write_text("rows")
    rename(tmp_path / "file", tmp_path / "moved")
    rename(directory(tmp_path / "dir", "part"), tmp_path / "gone")
    assert sorted(os.listdir(tmp_path)) == ["gone", "moved"]
    assert (tmp_path / "gone" / "part").read_text() == "dir"


@pytest.mark.parametrize("taken", ["file", "empty", "full", "dangling"])
@pytest.mark.parametrize("moved", ["file", "directory"])
def test_a_rename_replaces_nothing(tmp_path: Path, rename, moved: str, taken: str) -> None:
    source = tmp_path / "source"
    source.write_text("rows") if moved == "file" else directory(source, "part")
    target = tmp_path / "target"
    if taken == "file":
        target.write_text("others")
    elif taken == "dangling":
        target.symlink_to(tmp_path / "nowhere")
    else:
        directory(target, *(["part"] if taken == "full" else []))
    before = target.lstat()
    with pytest.raises(atomic.TargetExistsError):
        rename(source, target)
    assert target.lstat().st_ino == before.st_ino
    assert source.exists()


def test_a_rename_without_a_source_is_a_storage_error(tmp_path: Path, rename) -> None:
    with pytest.raises(StorageError) as caught:
        rename(tmp_path / "gone", tmp_path / "target")
    assert not isinstance(caught.value, atomic.TargetExistsError)
    assert os.listdir(tmp_path) == []


def test_what_is_discarded_may_be_a_file_a_directory_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("rows")
    for path in (tmp_path / "file", directory(tmp_path / "dir", "part"), tmp_path / "nothing"):
        atomic.discard(path)
    assert os.listdir(tmp_path) == []
