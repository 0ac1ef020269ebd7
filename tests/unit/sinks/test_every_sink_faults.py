"""Every sink through kills, zombies and full disks: every row visible once, whatever happens.

Two instruments. Real processes are killed (SIGKILL) or stopped and continued (SIGSTOP, SIGCONT) at the named
crash points. And, finer, something is made to happen before each line that the sink runs: a copy of the
disk (what a kill at that line would leave), or a take-over by another opening (what a process that was
held up at that line would wake up to). A target with locks may turn the other away while a transaction is
open; it then says that this heals, and the other comes again.

Not checked: what a power loss leaves; file systems other than the local one.
"""

from __future__ import annotations

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
from holdfast.testing.epochs import FLOW, expected, feed, publish_after, record, segments
from unit.sinks import feeding
from unit.sinks.kinds import KINDS, POINTS, Kind


@contextmanager
def before_lines(
    kind: Kind, wanted: Callable[[int], bool], act: Callable[[int], None]
) -> Iterator[list[int]]:
    """Call `act(n)` before the n-th line of the sink's code for each `n` wanted; yields those that came."""
    came: list[int] = []
    numbers = itertools.count(1)

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in kind.code:
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


def child(kind: Kind, target: Path, generation: int, directory: Path, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, feeding.__file__, kind.name, str(target), str(generation), str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        stdout=subprocess.PIPE,
        text=True,
    )


def turned_away(error: SinkError) -> str:
    """What a test notes for a target that was locked just then: any other refusal is a failure."""
    if not error.heals:
        raise error
    return "locked"


# Kills


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_crash_point_loses_and_repeats_nothing(
    kind: Kind, target: Path, directory: Path, point: str
) -> None:
    with child(kind, target, 1, directory, HOLDFAST_CRASH=f"{point}:2") as killed:
        assert killed.wait(timeout=60) == -signal.SIGKILL
    feed(kind.sink(target), directory, generation=2)
    assert kind.visible(target) == expected()
    assert kind.leftovers(target) == []


@pytest.mark.usefixtures("no_fsync")
def test_a_kill_before_any_line_loses_and_repeats_nothing(
    stepped: Kind, in_memory: Path, directory: Path
) -> None:
    disk = in_memory / "disk"
    feed(stepped.sink(disk / "out"), directory, generation=1, until=1)
    states: dict[int, dict[str, tuple[int, int, int]]] = {}

    def copy_if_changed(number: int) -> None:
        found = {str(path): path.stat() for path in disk.rglob("*")}
        state = {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}
        if state not in states.values():
            states[number] = state
            shutil.copytree(disk, in_memory / f"{number}")

    with before_lines(stepped, lambda _: True, copy_if_changed):
        feed(stepped.sink(disk / "out"), directory, generation=1, until=3)
    assert len(states) > 5
    for number, generation in itertools.product(states, (1, 2)):
        home = shutil.copytree(in_memory / f"{number}", in_memory / f"{number}-{generation}")
        before = stepped.visible(home / "out")
        assert before in (expected(until=1), expected(until=3)), number
        last = feed(stepped.sink(home / "out"), directory, generation)
        assert last is not None
        assert (last.epoch == 2) == (before == expected(until=3)), number
        assert stepped.visible(home / "out") == expected(), number
        assert stepped.leftovers(home / "out") == [], number


# Zombies


@pytest.mark.parametrize(
    ("kind", "point"),
    [pytest.param(kind, point, id=f"{kind.name}-{point}") for kind in KINDS.values() for point in kind.stops],
)
def test_a_process_that_is_stopped_and_replaced_changes_nothing_when_it_wakes_up(
    kind: Kind, target: Path, directory: Path, point: str
) -> None:
    with child(kind, target, 1, directory, STOP_AT=point) as zombie:
        os.waitpid(zombie.pid, os.WUNTRACED)
        sink = kind.sink(target)
        last = sink.open(FLOW, 0, 2)
        before = kind.snapshot(target)
        zombie.send_signal(signal.SIGCONT)
        said, _ = zombie.communicate(timeout=60)
    assert said.startswith("fenced")
    assert "by generation 2" in said
    assert kind.snapshot(target) == before
    publish_after(sink, last, directory, generation=2)
    assert kind.visible(target) == expected()


@pytest.mark.usefixtures("no_fsync", "impatient")
@pytest.mark.parametrize("epoch", [1, 2], ids=["empty", "rows"])
def test_a_take_over_before_any_line_of_a_publish_refuses_it_or_finds_it(
    stepped: Kind, in_memory: Path, directory: Path, epoch: int
) -> None:
    for number in itertools.count(1):
        generation = 1 + number % 2  # a newer one, and another opening of the same one, in turn
        target = in_memory / f"{number}" / "out"
        zombie, sink = stepped.sink(target), stepped.sink(target)
        feed(zombie, directory, generation=1, until=epoch)
        found = []

        def take_over(_: int, found=found, sink=sink, target=target, generation=generation) -> None:
            try:
                found.extend([sink.open(FLOW, 0, generation), stepped.snapshot(target)])
            except SinkError as error:
                turned_away(error)

        refused = False
        with before_lines(stepped, number.__eq__, take_over) as came:
            try:
                zombie.publish(record(epoch), segments(directory, epoch))
            except FencedError:
                refused = True
        if not came:
            break
        if not found:
            assert not refused, number
            take_over(number)
        last, before = found
        assert stepped.snapshot(target) == before, number
        assert refused or last.epoch == epoch, number
        with pytest.raises(FencedError):
            zombie.publish(record(epoch + (not refused)), segments(directory, epoch))
        publish_after(sink, last, directory, generation)
        assert stepped.visible(target) == expected(), number
    assert number > 20


@pytest.mark.usefixtures("no_fsync", "impatient")
def test_a_take_over_before_any_line_of_an_opening_refuses_it_or_fences_it(
    stepped: Kind, in_memory: Path, directory: Path
) -> None:
    for number in itertools.count(1):
        target = in_memory / f"{number}" / "out"
        feed(stepped.sink(target), directory, generation=1, until=1)
        zombie, sink = stepped.sink(target), stepped.sink(target)
        done = []

        def take_over(_: int, sink=sink, done=done) -> None:
            try:
                done.append(feed(sink, directory, generation=3, until=2))
            except SinkError as error:
                turned_away(error)

        refused = False
        with before_lines(stepped, number.__eq__, take_over) as came:
            try:
                zombie.open(FLOW, 0, 2)
            except FencedError:
                refused = True
        if not came:
            break
        if not done:
            assert not refused, number
            take_over(number)
        if not refused:
            with pytest.raises(FencedError, match="by generation 3"):
                zombie.publish(record(1, generation=2), segments(directory, 0))
        publish_after(sink, record(1), directory, generation=3)
        assert stepped.visible(target) == expected(), number
        assert stepped.sink(target).open(FLOW, 0, 3) == record(4, generation=3), number
    assert number > 20


@pytest.mark.usefixtures("no_fsync", "impatient")
def test_an_older_opening_in_the_middle_of_a_newer_one_is_refused_or_found(
    stepped: Kind, in_memory: Path, directory: Path
) -> None:
    """The other order: the older generation runs through while the newer one is held up."""
    for number in itertools.count(1):
        target = in_memory / f"{number}" / "out"
        feed(stepped.sink(target), directory, generation=1, until=2)
        zombie, sink = stepped.sink(target), stepped.sink(target)
        outcomes = []

        def run_through(_: int, zombie=zombie, outcomes=outcomes) -> None:
            try:
                outcomes.append(feed(zombie, directory, generation=2, until=3))
            except FencedError:
                outcomes.append("refused")
            except SinkError as error:
                turned_away(error)
                outcomes.append("refused")

        with before_lines(stepped, number.__eq__, run_through) as came:
            last = sink.open(FLOW, 0, 3)
        if not came:
            break
        assert last is not None
        assert last.epoch == (1 if outcomes == ["refused"] else 2), number
        if outcomes != ["refused"]:
            with pytest.raises(FencedError, match="by generation 3"):
                zombie.publish(record(3, generation=2), segments(directory, 4))
        publish_after(sink, last, directory, generation=3)
        assert stepped.visible(target) == expected(), number
    assert number > 20


@pytest.mark.usefixtures("no_fsync", "impatient")
def test_a_publish_in_the_middle_of_a_newer_opening_is_refused_or_found(
    stepped: Kind, in_memory: Path, directory: Path
) -> None:
    for number in itertools.count(1):
        target = in_memory / f"{number}" / "out"
        zombie, sink = stepped.sink(target), stepped.sink(target)
        feed(zombie, directory, generation=1, until=2)
        refusals = []

        def publish(_: int, zombie=zombie, refusals=refusals) -> None:
            try:
                zombie.publish(record(2), segments(directory, 2))
            except FencedError as error:
                refusals.append(error)
            except SinkError as error:
                refusals.append(turned_away(error))

        with before_lines(stepped, number.__eq__, publish) as came:
            last = sink.open(FLOW, 0, 2)
        if not came:
            break
        assert last == record(1 if refusals else 2), number
        publish_after(sink, last, directory, generation=2)
        assert stepped.visible(target) == expected(), number
    assert number > 20


# Disks

FULL_DISK = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from holdfast.testing.epochs import FLOW, SCHEMA, record
from unit.sinks.kinds import KINDS
from holdfast.core.errors import SinkError

disk, directory, kind = Path(sys.argv[1]), Path(sys.argv[2]), KINDS[sys.argv[3]]
segment = directory / "large.parquet"
rows = pa.table([range(50_000), [None] * 50_000], schema=SCHEMA)
pq.write_table(rows, segment, compression="none", use_dictionary=False)
sink = kind.sink(disk / "out")
sink.open(FLOW, 0, 1)
for size in range(2900, 0, -100):
    (disk / "ballast").write_bytes(bytes(size * 1024))
    try:
        sink.publish(record(0), [segment])
        break
    except SinkError as error:
        print(error.operation, error.hint)
    assert kind.visible(disk / "out") == []
    assert kind.leftovers(disk / "out") == []
    (disk / "ballast").unlink()
assert kind.visible(disk / "out") == list(range(50_000))
"""


def test_a_full_disk_shows_nothing_and_a_later_try_succeeds(
    kind: Kind, tmp_path: Path, directory: Path
) -> None:
    """Room is made bit by bit, so that it runs out in each of the steps."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-rm", "sh", "-ec", 'mount -t tmpfs -o size=3m tmpfs "$0" && exec "$@"', str(disk)]
    if subprocess.run([*mount, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no private mounts here")
    said = subprocess.run(
        [*mount, sys.executable, "-c", FULL_DISK, str(disk), str(directory), kind.name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    assert said
    assert {line.startswith("publish The disk is full") for line in said} == {True}
