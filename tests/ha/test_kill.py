"""kill -9 at any moment, run again, and find exact results."""

from __future__ import annotations

import random
import signal
import subprocess
import time

import pytest
from pyspark.sql import SparkSession

from holdfast.core import limits
from holdfast.core.crashpoints import POINTS
from stand import Stand

RUNS_PER_POINT = 3
SEED = 20261115

# Reached only when a file is lost, which test_lost_files.py sees to.
ONLY_IN_REPAIR = {"repair.before_commit"}

# Reached inside a task: the Python worker dies, Spark's job fails, and the flow itself tries again.
IN_TASKS = {"task.before_layer", "task.after_layer", "task.after_segment", "merge.mid"}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.slow)])
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


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("quarter", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_crash_at_every_point_in_turn_leaves_exact_sinks(
    stand: Stand, spark: SparkSession, quarter: int
) -> None:
    """One flow that crashes at one point after the other, with new input each time, is exact in the end.

    Each point takes a run of the flow, or several: `make test` tries every fourth one, `make test-all` each.
    """
    stand.feed(6)
    missed = []
    for point in [point for point in POINTS if point not in ONLY_IN_REPAIR][quarter::4]:
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


@pytest.mark.timeout(600)
def test_a_zombie_changes_nothing_is_told_so_and_stops(stand: Stand, spark: SparkSession) -> None:
    stand.feed(12)
    zombie = stand.start()
    stand.wait_for(zombie, generation=1, head=2)
    stop_outside_a_transaction(stand, zombie)
    refused, said = stand.run()
    assert refused != 0
    assert f"process {zombie.pid}" in said, said
    stand.feed(2)
    status, said = stand.run("--take-over")
    assert status == 0, said
    stand.check(spark)
    before = _visible(stand)
    zombie.send_signal(signal.SIGCONT)
    out, err = zombie.communicate(timeout=120)
    assert zombie.returncode != 0
    assert "FencedError" in err, out + err
    assert _visible(stand) == before
    stand.check(spark)


def stop_outside_a_transaction(stand: Stand, process: subprocess.Popen[str]) -> None:
    """A process that stops with the ledger's lock in its hand is ended by a take-over, and one with a table's lock
    keeps everybody waiting; this one shall do neither."""
    while True:
        process.send_signal(signal.SIGSTOP)
        if not stand.is_locked():
            return
        process.send_signal(signal.SIGCONT)
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
