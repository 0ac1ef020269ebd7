"""The Parquet sink's own ways with kernels and disks: renames, devices, links, and the order of fsyncs.

Not checked: what a power loss leaves, beyond that order; file systems other than the local one.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, SinkError
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage import atomic
from holdfast.testing.epochs import (
    FLOW,
    expected,
    feed,
    publish_after,
    record,
    segments,
)
from unit.sinks.kinds import files_visible as visible


def test_a_rename_that_had_already_found_the_fenced_staging_finds_nothing_in_it(
    target: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the kernel a rename looks up both directories first: it may hold the renamed one."""
    zombie, sink = ParquetSink(target), ParquetSink(target)
    zombie.open(FLOW, 0, 1)

    def late(staged: Path, final: Path) -> None:
        staging = os.open(staged.parent, os.O_RDONLY)
        monkeypatch.undo()
        monkeypatch.setattr(atomic, "discard", lambda path: None)
        sink.open(FLOW, 0, 2)
        with pytest.raises(FileNotFoundError):
            os.rename(staged.name, final, src_dir_fd=staging)
        os.close(staging)
        raise FileNotFoundError

    monkeypatch.setattr(atomic, "rename_without_replacing", late)
    with pytest.raises(FencedError):
        zombie.publish(record(0), segments(directory, 0))
    assert os.listdir(target) == []


def test_segments_on_another_device_are_copied(target: Path, directory: Path, single_file: bool) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == directory.stat().st_dev:
        pytest.skip("no second device here")
    elsewhere = shared / f"holdfast-test-{os.getpid()}"
    shutil.copytree(directory, elsewhere)
    try:
        feed(ParquetSink(target, single_file), elsewhere, generation=1)
    finally:
        shutil.rmtree(elsewhere)
    assert visible(target) == expected()


def test_where_links_are_impossible_segments_are_copied(
    target: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, link: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    feed(ParquetSink(target), directory, generation=1)
    assert visible(target) == expected()


def test_any_fsync_may_fail_and_a_second_try_succeeds(
    tmp_path: Path, directory: Path, single_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count(1):
        target = tmp_path / f"{number}" / "out"
        sink = ParquetSink(target, single_file)
        feed(sink, directory, generation=1, until=2)
        calls = itertools.count(1)

        def fsync(fd: int, calls=calls, number=number) -> None:
            if next(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        failed = None
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            try:
                sink.publish(record(2), segments(directory, 2))
            except SinkError as error:
                failed = error
        if failed is None:
            break
        assert failed.epoch == 2
        assert "The disk is full" in str(failed.hint)
        assert visible(target) in (expected(until=2), expected(until=3)), number
        publish_after(sink, record(1), directory, generation=1)
        assert visible(target) == expected(), number
    assert number > 4


def test_bytes_are_durable_before_the_name_and_the_name_before_the_record(
    target: Path, directory: Path, single_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(target, single_file)
    sink.open(FLOW, 0, 1)
    synced: set[int] = set()
    steps: list[str] = []
    fsync, rename, write = os.fsync, atomic.rename_without_replacing, atomic.write_atomic

    def watched_fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    def watched_rename(staged: Path, final: Path) -> None:
        assert {path.stat().st_ino for path in (staged, *staged.rglob("*"))} <= synced
        synced.clear()
        steps.append("rename")
        rename(staged, final)

    def watched_write(path: Path, data: bytes) -> None:
        assert target.stat().st_ino in synced
        steps.append("record")
        write(path, data)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(atomic, "rename_without_replacing", watched_rename)
    monkeypatch.setattr(atomic, "write_atomic", watched_write)
    sink.publish(record(0), segments(directory, 0))
    assert steps == ["rename", "record"]
    synced.clear()
    ParquetSink(target, single_file).open(FLOW, 0, 2)
    assert steps == ["rename", "record", "record"]


def test_epoch_numbers_beyond_the_fixed_width_still_sort_as_numbers(target: Path, directory: Path) -> None:
    sink = ParquetSink(target)
    first = 99_999_999
    sink.open(FLOW, 0, 1, start=first)
    for epoch in (first, first + 1):
        sink.publish(record(epoch), segments(directory, 0))
    shutil.rmtree(target.parent / ".out.holdfast")
    assert sink.open(FLOW, 0, 1) == record(first + 1)
