"""`holdfast run` keeps a flow alive: whatever dies or hangs is replaced, and the sinks stay exact."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flow_under_fire import table
from guard import HOLDFAST, Guard, Guarded
from holdfast.core import limits
from holdfast.core.json import Json
from holdfast.ledger.process import Process
from holdfast.ledger.roster import roster
from holdfast.runtime.evidence import kin
from stand import Stand

SEED = 20261116


def promotions(stand: Stand) -> list[str]:
    return [reason for kind, reason in stand.events() if kind == "promoted"]


@pytest.mark.timeout(900)
def test_stages_with_different_policies_survive_the_death_of_every_process(
    guarded: Guarded, stand: Stand, spark: SparkSession
) -> None:
    """Passive and active standby, upstream backup and strong production in one flow; the primary is killed, then
    its successor hangs, the supervisor dies just when it has fenced it off, the zombie comes back, the next supervisor
    finds the others at work, and last all workers die at once."""
    stand.feed(8)
    guard = guarded("mixed", crash="failover.after_fence:3")
    guard.wait_for_head(2)
    guard.wait_for_standby()
    first = guard.kill_primary()
    guard.wait_for_another_primary(first)
    stand.feed(4)
    guard.wait_for_head(stand.head() + 2)

    guard.wait_for_standby()
    zombie = guard.primary()
    os.kill(guard.pid(zombie), signal.SIGSTOP)
    assert guard.process.wait(60) == -signal.SIGKILL
    before, worker = stand.head(), guard.primary()
    assert worker["worker"] != zombie["worker"]
    stand.feed(4)
    deadline = time.monotonic() + 120
    while stand.head() < before + 2:
        assert time.monotonic() < deadline, "the workers did not go on without a supervisor"
        time.sleep(0.05)
    os.kill(guard.pid(zombie), signal.SIGCONT)
    guard.again()
    log = guard.root / "logs" / f"{zombie['worker']}.log"
    guard.wait("the zombie's end", lambda: "FencedError" in log.read_text())
    guard.wait_for_standby()
    assert guard.primary()["worker"] == worker["worker"], (
        "a worker that runs just this should have been adopted"
    )

    for one in guard.group()["workers"]:
        if one["lives"]:
            os.kill(guard.pid(one), signal.SIGKILL)
    stand.feed(4)
    guard.wait_until_all_is_out()
    status, said = guard.stop()
    assert status == 0, said
    stand.check(spark)
    kinds = [kind for kind, _ in stand.events()]
    assert kinds.count("skipped") == 0
    assert "restored" in kinds, "the standby's directory was never used"
    assert any("was made again from" in reason for kind, reason in stand.events() if kind == "recovered")


@pytest.mark.timeout(600)
def test_neither_load_nor_an_outage_of_the_ledger_deposes_anybody(
    guarded: Guarded, stand: Stand, spark: SparkSession
) -> None:
    stand.feed(10)
    guard = guarded("warm", quiet=False)
    guard.wait_for_head(2)
    guard.wait_for_standby()
    with closing(sqlite3.connect(guard.root / "ledger.db", timeout=30, isolation_level=None)) as ledger:
        ledger.execute("begin immediate")
        time.sleep(10)
        ledger.execute("rollback")
    before = stand.head()
    stand.feed(4)
    guard.wait_for_head(before + 2)
    found = subprocess.run(
        [HOLDFAST, "failover", "totals", "--work-dir", str(guard.root), "--reason", "practice"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert len(promotions(stand)) == 2, promotions(stand)
    assert found.returncode == 0, found.stderr
    assert "leads group main" in found.stdout
    assert "somebody asked for it" in promotions(stand)[1]
    guard.wait_until_all_is_out()
    told = [
        promotions(stand)[1],
        *(holdfast(command, "--work-dir", guard.root) for command in ("status", "workers")),
    ]
    status, said = guard.stop()
    assert status == 0, said
    assert all(f" failover: main: {told[0]}" in " ".join(one.split()) for one in (said, *told[1:])), (
        said,
        told,
    )
    stand.check(spark)


def holdfast(*words: object) -> str:
    """What a command says."""
    command = [str(HOLDFAST), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.timeout(600)
def test_who_was_struck_off_ends_and_a_stop_leaves_no_process(guarded: Guarded, stand: Stand) -> None:
    """A standby stands still for a while and comes back; another dies and leaves a JVM that was stopped."""
    stand.feed(4)
    guard = guarded("warm")
    guard.wait_for_head(1)
    guard.wait_for_standby()
    first = standby(guard)
    os.kill(guard.pid(first), signal.SIGSTOP)
    guard.wait("its being struck off", lambda: first["worker"] not in names(guard))
    os.kill(guard.pid(first), signal.SIGCONT)
    guard.wait("its end", lambda: not kin(process_of(first), first["worker"]))

    guard.wait("another standby", lambda: standby(guard)["status"] == "ready")
    second = standby(guard)
    jvm = next(pid for pid in kin(process_of(second), second["worker"]) if is_java(pid))
    os.kill(jvm, signal.SIGSTOP)
    os.kill(guard.pid(second), signal.SIGKILL)
    guard.wait("its being struck off", lambda: second["worker"] not in names(guard))
    workers = [
        (process_of(one), one["worker"])
        for one in [first, second, *guard.group()["workers"]]
        if one["process"]
    ]
    status, said = guard.stop()
    assert status == 0, said
    assert [kin(process, worker) for process, worker in workers] == [[]] * len(workers)
    assert stand.read("select worker from processes") == []


def names(guard: Guard) -> list[str]:
    return [worker["worker"] for worker in guard.group()["workers"]]


def standby(guard: Guard) -> Json:
    group = guard.group()
    found: Json = next(w for w in group["workers"] if w["worker"] != group["primary"] and w["lives"])
    return found


def process_of(worker: Json) -> Process:
    return Process(**worker["process"])


def is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").resolve().name == "java"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("policies", ["warm", "mixed"])
def test_nobody_is_deposed_in_ten_minutes_at_full_load(
    guarded: Guarded, stand: Stand, spark: SparkSession, policies: str
) -> None:
    """There is always input that waits, and a standby that practises beside it."""
    stand.feed(20)
    guard = guarded(policies)
    guard.wait_for_standby(limits.REHEARSALS_TO_BE_WARM)
    until, head = time.monotonic() + 600, stand.head()
    while time.monotonic() < until:
        if stand.files - stand.processed("stage:unique", "source:rows") < 10:
            stand.feed(10)
        assert guard.process.poll() is None
        time.sleep(0.2)
    assert len(promotions(stand)) == 1, promotions(stand)
    assert stand.head() - head > 60
    guard.wait_until_all_is_out()
    status, said = guard.stop()
    assert status == 0, said
    stand.check(spark)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("policies", "options"), [("lockstep", ()), ("cold", ()), ("warm", ("--workers", "2"))]
)
def test_kills_at_random_moments_leave_exact_sinks(
    guarded: Guarded, stand: Stand, spark: SparkSession, policies: str, options: tuple[str, ...]
) -> None:
    """Members in step, nobody standing by, and stages spread over two processes that fail alone."""
    moments = random.Random(SEED)
    stand.feed(30)
    guard = guarded(policies, *options)
    for _ in range(3):
        guard.wait_for_head(stand.head() + 2)
        time.sleep(moments.uniform(0.0, 2.0))
        group = moments.choice(list(roster(guard.root)["groups"]))
        primary = guard.primary(group)
        os.kill(guard.pid(primary), signal.SIGKILL)
        guard.wait_for_another_primary(primary["worker"], group)
    guard.wait_until_all_is_out()
    status, said = guard.stop()
    assert status == 0, said
    stand.check(spark)


@pytest.mark.timeout(600)
def test_a_gap_accounts_for_every_row(guarded: Guarded, stand: Stand) -> None:
    """Rows in are rows processed and rows reported as skipped; what was only in the lost state is reported beside."""
    stand.feed(12)
    guard = guarded("gap")
    guard.wait_for_head(3)
    first = guard.kill_primary()
    guard.wait_for_another_primary(first)
    guard.wait("the skip", lambda: any(kind == "skipped" for kind, _ in stand.events()))
    stand.feed(3)
    guard.wait("the end of the input", lambda: stand.processed("stage:totals", "source:rows") == stand.files)
    status, said = guard.stop()
    assert status == 0, said
    manifests = stand.manifests("totals")
    fed = stand.files * table(1).num_rows
    assert sum(m["rows_in"] for m in manifests) + sum(m.get("rows_skipped", 0) for m in manifests) == fed
    (skip,) = [m for m in manifests if "skipped" in m]
    before = manifests[manifests.index(skip) - 1]
    assert skip["state_rows_lost"] == before["state_rows"] > 0
    after = manifests[manifests.index(skip) + 1]
    assert after["state_rows"] == after["keys"], "the state should have begun anew"


def test_a_supervisor_imports_neither_spark_nor_the_flow() -> None:
    code = "import holdfast.interfaces.cli, sys; print([m for m in ('pyspark', 'py4j') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
