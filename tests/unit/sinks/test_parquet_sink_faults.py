"""The Parquet sink through kills, zombies and full disks: every row visible once, whatever happens.

Two instruments. Real processes are killed (SIGKILL) or stopped and continued (SIGSTOP, SIGCONT) at the named
crash points. And, finer, something is made to happen before each line that the sink runs: a copy of the
disk (what a kill at that line would leave), or a take-over by another opening (what a process that was
held up at that line would wake up to).

Not checked: what a power loss leaves, beyond the order of the fsyncs; file systems other than the local one.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, SinkError
from holdfast.sinks import parquet
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage import atomic
from unit.sinks import feeding
from unit.sinks.feeding import (
    FLOW,
    expected,
    feed,
    publish_after,
    record,
    segments,
    snapshot,
    visible,
)

POINTS = ["sink.before_stage", "sink.after_stage", "sink.after_publish", "sink.after_record"]
SINK_CODE = {parquet.__file__, atomic.__file__}


@contextmanager
def before_lines(wanted: Callable[[int], bool], act: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `act(n)` before the n-th line of the sink's code for each `n` wanted; yields those that came."""
    came: list[int] = []
    numbers = itertools.count(1)

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in SINK_CODE:
            return None
        if event == "line" and wanted(number := next(numbers)):
            came.append(number)
            act(number)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    finally:
        sys.settrace(previous)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that go through every line and in which the power stays on: an fsync has no effect there."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def child(target: Path, single_file: bool, generation: int, directory: Path, **env: str) -> subprocess.Popen:
    arguments = [str(target), str(single_file), str(generation), str(directory)]
    return subprocess.Popen(
        [sys.executable, feeding.__file__, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        stdout=subprocess.PIPE,
        text=True,
    )


# Kills


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_crash_point_loses_and_repeats_nothing(
    target: Path, directory: Path, single_file: bool, point: str
) -> None:
    with child(target, single_file, 1, directory, HOLDFAST_CRASH=f"{point}:2") as killed:
        assert killed.wait(timeout=60) == -signal.SIGKILL
    feed(ParquetSink(target, single_file), directory, generation=2)
    assert visible(target) == expected()


@pytest.mark.usefixtures("no_fsync")
def test_a_kill_before_any_line_loses_and_repeats_nothing(
    tmp_path: Path, directory: Path, single_file: bool
) -> None:
    disk = tmp_path / "disk"
    feed(ParquetSink(disk / "out", single_file), directory, generation=1, until=1)
    states: dict[int, dict[str, int]] = {}

    def copy_if_changed(number: int) -> None:
        state = {str(path): path.stat().st_ino for path in disk.rglob("*")}
        if state not in states.values():
            states[number] = state
            shutil.copytree(disk, tmp_path / f"{number}")

    with before_lines(lambda _: True, copy_if_changed):
        feed(ParquetSink(disk / "out", single_file), directory, generation=1, until=3)
    assert len(states) > 10
    for number, generation in itertools.product(states, (1, 2)):
        home = shutil.copytree(tmp_path / f"{number}", tmp_path / f"{number}-{generation}")
        before = visible(home / "out")
        assert before in (expected(until=1), expected(until=3)), number
        last = feed(ParquetSink(home / "out", single_file), directory, generation)
        assert last is not None
        assert (last.epoch == 2) == (before == expected(until=3)), number
        assert visible(home / "out") == expected(), number
        assert len(os.listdir(home / ".out.holdfast")) == 1, number


# Zombies


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_stopped_and_replaced_changes_nothing_when_it_wakes_up(
    target: Path, directory: Path, single_file: bool, point: str
) -> None:
    with child(target, single_file, 1, directory, STOP_AT=point) as zombie:
        os.waitpid(zombie.pid, os.WUNTRACED)
        sink = ParquetSink(target, single_file)
        last = sink.open(FLOW, 0, 2)
        before = snapshot(target)
        zombie.send_signal(signal.SIGCONT)
        said, _ = zombie.communicate(timeout=60)
    assert said.startswith("fenced")
    assert "by generation 2" in said
    assert snapshot(target) == before
    publish_after(sink, last, directory, generation=2)
    assert visible(target) == expected()


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("epoch", [1, 2], ids=["empty", "rows"])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_take_over_before_any_line_of_a_publish_refuses_it_or_finds_it(
    tmp_path: Path, directory: Path, single_file: bool, generation: int, epoch: int
) -> None:
    for number in itertools.count(1):
        target = tmp_path / f"{number}" / "out"
        zombie, sink = ParquetSink(target, single_file), ParquetSink(target, single_file)
        feed(zombie, directory, generation=1, until=epoch)
        found = []

        def take_over(_: int, found=found, sink=sink, target=target) -> None:
            found.extend([sink.open(FLOW, 0, generation), snapshot(target)])

        refused = False
        with before_lines(number.__eq__, take_over) as came:
            try:
                zombie.publish(record(epoch), segments(directory, epoch))
            except FencedError:
                refused = True
        if not came:
            break
        last, before = found
        assert snapshot(target) == before, number
        assert refused or last.epoch == epoch, number
        with pytest.raises(FencedError):
            zombie.publish(record(epoch + (not refused)), segments(directory, epoch))
        publish_after(sink, last, directory, generation)
        assert visible(target) == expected(), number
    assert number > 20


@pytest.mark.usefixtures("no_fsync")
def test_a_take_over_before_any_line_of_an_opening_refuses_it_or_fences_it(
    tmp_path: Path, directory: Path
) -> None:
    for number in itertools.count(1):
        target = tmp_path / f"{number}" / "out"
        feed(ParquetSink(target), directory, generation=1, until=1)
        zombie, sink = ParquetSink(target), ParquetSink(target)
        refused = False
        with before_lines(
            number.__eq__, lambda _, sink=sink: feed(sink, directory, generation=3, until=2)
        ) as came:
            try:
                zombie.open(FLOW, 0, 2)
            except FencedError:
                refused = True
        if not came:
            break
        if not refused:
            with pytest.raises(FencedError, match="by generation 3"):
                zombie.publish(record(1, generation=2), segments(directory, 0))
        publish_after(sink, record(1), directory, generation=3)
        assert visible(target) == expected(), number
        assert ParquetSink(target).open(FLOW, 0, 3) == record(4, generation=3), number
    assert number > 50


@pytest.mark.usefixtures("no_fsync")
def test_an_older_opening_in_the_middle_of_a_newer_one_is_refused_or_found(
    tmp_path: Path, directory: Path
) -> None:
    """The other order: the older generation runs through while the newer one is held up."""
    for number in itertools.count(1):
        target = tmp_path / f"{number}" / "out"
        feed(ParquetSink(target), directory, generation=1, until=2)
        zombie, sink = ParquetSink(target), ParquetSink(target)
        outcomes = []

        def run_through(_: int, zombie=zombie, outcomes=outcomes) -> None:
            try:
                outcomes.append(feed(zombie, directory, generation=2, until=3))
            except FencedError:
                outcomes.append("refused")

        with before_lines(number.__eq__, run_through) as came:
            last = sink.open(FLOW, 0, 3)
        if not came:
            break
        assert last is not None
        assert last.epoch == (1 if outcomes == ["refused"] else 2), number
        if outcomes != ["refused"]:
            with pytest.raises(FencedError, match="by generation 3"):
                zombie.publish(record(3, generation=2), segments(directory, 4))
        publish_after(sink, last, directory, generation=3)
        assert visible(target) == expected(), number
    assert number > 50


@pytest.mark.usefixtures("no_fsync")
def test_a_publish_in_the_middle_of_a_newer_opening_is_refused_or_found(
    tmp_path: Path, directory: Path
) -> None:
    for number in itertools.count(1):
        target = tmp_path / f"{number}" / "out"
        zombie, sink = ParquetSink(target), ParquetSink(target)
        feed(zombie, directory, generation=1, until=2)
        refusals = []

        def publish(_: int, zombie=zombie, refusals=refusals) -> None:
            try:
                zombie.publish(record(2), segments(directory, 2))
            except FencedError as error:
                refusals.append(error)

        with before_lines(number.__eq__, publish) as came:
            last = sink.open(FLOW, 0, 2)
        if not came:
            break
        assert last == record(1 if refusals else 2), number
        publish_after(sink, last, directory, generation=2)
        assert visible(target) == expected(), number
    assert number > 50


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


# Disks


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


FULL_DISK = """
import os, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from unit.sinks.feeding import FLOW, record
from holdfast.core.errors import SinkError
from holdfast.sinks.parquet import ParquetSink

disk, directory, single_file = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True"
segment = directory / "large.parquet"
pq.write_table(pa.table({"value": range(100_000)}), segment, compression="none", use_dictionary=False)
sink = ParquetSink(disk / "out", single_file)
sink.open(FLOW, 0, 1)
(disk / "ballast").write_bytes(bytes(512 * 1024))
try:
    sink.publish(record(0), [segment])
except SinkError as error:
    print(error.operation, error.hint)
assert os.listdir(disk / "out") == []
assert [path for path in disk.rglob("*") if path.name.endswith(("parquet", "tmp"))] == []
(disk / "ballast").unlink()
sink.publish(record(0), [segment])
assert pq.read_table(disk / "out", partitioning=None).num_rows == 100_000
"""


def test_a_full_disk_shows_nothing_and_a_second_try_succeeds(
    tmp_path: Path, directory: Path, single_file: bool
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-rm", "sh", "-ec", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', str(disk)]
    if subprocess.run([*mount, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no private mounts here")
    said = subprocess.run(
        [*mount, sys.executable, "-c", FULL_DISK, str(disk), str(directory), str(single_file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert said.startswith("publish The disk is full")


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
