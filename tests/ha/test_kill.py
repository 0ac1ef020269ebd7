"""kill -9 at any moment, run again, and find exact results."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from flow_under_fire import ALONE, build
from holdfast.core import limits
from holdfast.core.crashpoints import POINTS
from stand import SECONDS_MAX, Stand

RUNS_PER_POINT = 3
SEED = 20261115

# Reached only when a file is lost, which test_lost_files.py sees to.
ONLY_IN_REPAIR = {"repair.before_commit"}

# Reached only in `holdfast run`: test_supervisor.py and tests/unit/runtime/test_lease.py see to them.
ONLY_SUPERVISED = {"lease.before_renew", "failover.after_fence"}

# Reached only where a stream is enriched: test_verify.py sees to it.
ONLY_ENRICHED = {"table.after_copy"}

# Reached inside a task: the Python worker dies, Spark's job fails, and the flow itself tries again.
IN_TASKS = {"task.before_layer", "task.after_layer", "task.after_segment", "merge.mid"}

# Where a process is stopped, to come back when another has taken over: before and after each thing that others see.
# In `make test`, `holdfast verify` has its zombies; these have a JVM of their own.
ZOMBIES = [
    "commit.before:9",
    "plan.before:9",
    "plan.after:9",
    "commit.after:9",
    "sink.after_stage:5",
    "sink.after_publish:5",
    "ship.mid:20",
    "ship.after:5",
    "merge.before_commit",
    "sweep.after_condemn:3",
    "sweep.mid:5",
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_leaves_exact_sinks(stand: Stand, spark: SparkSession, kills: int) -> None:
    moments = random.Random(SEED)
    stand.feed(40)
    for _ in range(kills):
        generation, head = stand.generation(), stand.head()
        process = stand.start()
        stand.wait_for(process, generation=generation + 1, head=head + moments.randint(0, 2))
        time.sleep(moments.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        stand.feed(1)
    status, said = stand.run()
    assert status == 0, said
    stand.check(spark)
    assert sum(kind == "taken" for kind, _ in stand.events()) == kills + 1


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("sixth", range(6))
def test_a_crash_at_every_point_in_turn_leaves_exact_sinks(
    stand: Stand, spark: SparkSession, sixth: int
) -> None:
    """One flow that crashes at one point after the other, with new input each time, is exact in the end.

    Each point takes a run of the flow with a JVM of its own, or several. In `make test`, `holdfast verify` goes through them.
    """
    stand.feed(6)
    missed = []
    elsewhere = ONLY_IN_REPAIR | ONLY_SUPERVISED | ONLY_ENRICHED
    for point in [point for point in POINTS if point not in elsewhere][sixth::6]:
        mark = stand.home / f"{point}.reached"
        for _ in range(RUNS_PER_POINT):
            # A merge needs a whole level of new layers, and is given up when the flow is idle before it is done.
            stand.feed(limits.MERGE_FANOUT + 1 if point.startswith("merge") else 3)
            status, said = stand.run(HOLDFAST_CRASH=point, HOLDFAST_CRASH_MARK=str(mark))
            died = mark.exists() and point not in IN_TASKS
            assert status == (-signal.SIGKILL if died else 0), (point, said)
            if mark.exists():
                break
        else:
            missed.append(point)
    assert missed == []
    status, said = stand.run()
    assert status == 0, said
    stand.check(spark)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", ZOMBIES)
def test_a_zombie_changes_nothing_is_told_so_and_stops(
    stand: Stand, spark: SparkSession, moment: str
) -> None:
    stand.feed(12)
    zombie = stand.start(HOLDFAST_CRASH=f"{moment}:stop")
    wait_until_stopped(stand, zombie)
    with pytest.raises(hf.LedgerError, match=f"process {zombie.pid}"):
        build(stand.home, ALONE).run(stand.home / "work", until_idle=True, spark=spark)
    stand.feed(2)
    build(stand.home, ALONE).run(stand.home / "work", until_idle=True, take_over=True, spark=spark)
    stand.check(spark)
    before = _visible(stand)
    zombie.send_signal(signal.SIGCONT)
    out, err = zombie.communicate(timeout=120)
    assert zombie.returncode > 0
    assert "FencedError" in err, out + err
    assert _visible(stand) == before
    stand.check(spark)


def wait_until_stopped(stand: Stand, process: subprocess.Popen[str]) -> None:
    """Wait until a process stands still, and, if one of its other threads has a database's lock in its hand, a little
    later: it would be ended by the take-over, or keep everybody waiting for the table."""
    deadline = time.monotonic() + SECONDS_MAX
    state = Path(f"/proc/{process.pid}/stat")

    def stands_still() -> bool:
        return state.read_text().rpartition(")")[2].split()[0] == "T"

    while not stands_still() or stand.is_locked():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the process was never stopped"
        if stands_still():
            process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
        time.sleep(0.02)


def _visible(stand: Stand) -> dict[str, object]:
    """Everything that a reader of a sink can see, and the heads of all stages."""
    sinks = [stand.home / name for name in ("totals", "windows", "few", "late")]
    files = {
        str(path): path.stat().st_mtime_ns for sink in sinks for path in sink.rglob("*") if path.is_file()
    }
    tables = {f"table {name}": stand.rows(name) for name in ("totals", "few", "holdfast_sinks")}
    heads = {stage: stand.head(stage) for stage in ("unique", "totals", "windows", "few")}
    return {**files, **tables, **heads}
