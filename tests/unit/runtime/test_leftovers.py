"""What was struck off ends, by itself or not, with all that it started; a stop knows of every process there ever was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import limits
from holdfast.ledger import groups, holder
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.process import Process
from holdfast.runtime import evidence
from holdfast.runtime.leftovers import Leftovers

# A worker that does not listen, and something that it has started in a group of its own, as Spark does.
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    holder.supervise(made, "flow")
    yield made
    made.close()


@pytest.fixture
def worker(ledger: Ledger) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", DEAF],
        env={**os.environ, evidence.WORKER_VARIABLE: "w"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    groups.note_process(ledger, "w", Process.here(child.pid))
    yield child
    evidence.end_kin(Process.here(child.pid), "w")
    child.stdout.close()
    child.wait()


def noted(ledger: Ledger) -> dict[str, Process]:
    with ledger.read() as tx:
        return groups.noted_processes(tx)


def test_what_a_dead_worker_leaves_comes_after_everybody_and_one_that_lives_keeps_its_turn(
    ledger: Ledger, worker: subprocess.Popen[bytes]
) -> None:
    process, before = Process.here(worker.pid), os.getpriority(os.PRIO_PROCESS, 0)
    [started] = set(evidence.kin(process, "w")) - {worker.pid}
    Leftovers(ledger).leave("w", process, worker)
    assert os.getpriority(os.PRIO_PROCESS, started) == before, "it may hold the ledger's lock"
    worker.kill()
    worker.wait()
    Leftovers(ledger).leave("w", process, worker)
    assert os.getpriority(os.PRIO_PROCESS, started) == 19


def test_who_was_struck_off_and_stays_is_ended_with_all_that_it_started(
    ledger: Ledger, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, leftovers = Process.here(worker.pid), Leftovers(ledger)
    assert len(evidence.kin(process, "w")) == 2
    leftovers.leave("w", process, worker)
    leftovers.step()
    assert len(evidence.kin(process, "w")) == 2, "it has its time to end by itself"
    assert leftovers.why("w")
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + limits.FENCED_MS_MAX / 1000)
    while leftovers.why("w"):
        leftovers.step()
        time.sleep(0.05)
    assert evidence.kin(process, "w") == []
    assert noted(ledger) == {}


def test_what_an_ended_worker_has_left_behind_is_ended_too(
    ledger: Ledger, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FENCED_MS_MAX", 300)
    process, leftovers = Process.here(worker.pid), Leftovers(ledger)
    worker.send_signal(signal.SIGKILL)
    leftovers.leave("w", process, worker)
    while leftovers.why("w"):
        leftovers.step()
        time.sleep(0.05)
    assert evidence.kin(process, "w") == []


def test_a_stop_ends_what_another_supervisor_had_struck_off(
    ledger: Ledger, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STOP_MS_MAX", 200)
    monkeypatch.setattr(limits, "PROCESS_END_MS_MAX", 2_000)
    process = Process.here(worker.pid)
    Leftovers(ledger).end_all({})
    assert evidence.kin(process, "w") == []
    assert noted(ledger) == {}


def test_a_process_of_the_same_session_that_is_not_the_workers_is_left_alone(
    ledger: Ledger, worker: subprocess.Popen[bytes]
) -> None:
    assert evidence.kin(Process.here(worker.pid), "somebody else") == []
    assert evidence.kin(Process.here(os.getpid()), "w") == []
