"""The real judge and real processes: who is ill is found, who is only starved is left alone.

Workers without Spark, so that it is short; `make matrix` does the same to a flow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ill_worker
from detection_matrix import Matrix
from holdfast.core import limits
from holdfast.ledger.groups import WorkerRow
from holdfast.ledger.process import Process
from holdfast.protocols.detector import Terms
from holdfast.protocols.stuck import OpenPlan
from holdfast.protocols.supervision import ACTIVE
from holdfast.runtime import evidence
from holdfast.runtime.watching import Watching
from load import be_nice, busy
from planted_rules import gains_cpu_is_alive, wall_clock_only

TERMS = Terms()
WARM_S = 3.0
PLAN = OpenPlan("totals", 0, 7, 1)


class Ward:
    """Workers without Spark, and the judge who watches them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watching = Watching(root)
        self.rows: dict[str, WorkerRow] = {}
        self.fell_ill: dict[str, float] = {}
        self.accused: dict[str, tuple[float, str]] = {}  # when, and why

    def admit(self, worker: str, *, nice: bool = False, **env: str) -> None:
        """Start a worker and watch it."""
        child = subprocess.Popen(
            [sys.executable, ill_worker.__file__, str(self.root), worker],
            env={**os.environ, evidence.WORKER_VARIABLE: worker, **env},
            start_new_session=True,
            preexec_fn=be_nice if nice else None,
        )
        self.watching.begin(worker, child)
        self.rows[worker] = WorkerRow(worker, "main", ACTIVE, Process.here(child.pid), 0, None, 0)

    def fall_ill(self, worker: str, fault: str) -> None:
        """Have something befall a worker, named after what does."""
        pid = self._pid(worker)
        self.fell_ill[worker] = time.monotonic()
        if fault == "killed":
            os.kill(pid, signal.SIGKILL)
        elif fault == "stopped":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "jvm":
            for child in evidence.kin(Process.here(pid), worker):
                os.kill(child, signal.SIGSTOP if child != pid else signal.SIGCONT)
        else:
            (self.root / f"{worker}.{fault}").touch()

    def watch(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Judge all workers as a supervisor does, for so long or until it is enough."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not enough():
            for worker, row in self.rows.items():
                look = self.watching.look(row, TERMS)
                still = self.watching.look_at_plans(row, [PLAN], TERMS, lambda _: [])
                why = (look.why_silent or still.why) if look.lives else "its process has ended"
                if why and worker not in self.accused:
                    self.accused[worker] = time.monotonic(), why
            time.sleep(limits.WATCH_MS / 1000)

    def found_after_s(self, worker: str) -> float:
        """How long it took to find out that a worker is ill."""
        assert worker in self.accused, (
            f"{worker} was not found in {time.monotonic() - self.fell_ill[worker]:.1f} s"
        )
        return self.accused[worker][0] - self.fell_ill[worker]

    def close(self) -> None:
        """End everybody."""
        for worker, row in self.rows.items():
            assert row.process is not None
            evidence.end_kin(row.process, worker)
            row.process.end()
            child = self.watching.forget(worker).child
            assert child is not None
            child.wait()

    def _pid(self, worker: str) -> int:
        process = self.rows[worker].process
        assert process is not None
        return process.pid


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    made = Ward(tmp_path)
    yield made
    made.close()


# By fault, how soon it must be found beside 24 processes that want the CPU.
UNDER_LOAD_S = {"killed": 5.0, "stopped": 30.0, "asleep": 30.0, "regex": 30.0}


@pytest.mark.timeout(180)
def test_beside_24_busy_processes_the_ill_are_found_and_the_starved_are_not_accused(ward: Ward) -> None:
    ward.admit("well")
    ward.admit("well and nice", nice=True)
    for fault in UNDER_LOAD_S:
        ward.admit(fault)
    ward.watch(60, enough=lambda: all(_has_begun(ward, worker) for worker in ward.rows))
    with busy(24):
        ward.watch(WARM_S)
        assert not ward.accused
        for fault in UNDER_LOAD_S:
            ward.fall_ill(fault, fault)
        ward.watch(40, enough=lambda: {*UNDER_LOAD_S} <= {*ward.accused})
        ward.watch(5)
    assert {*ward.accused} == {*UNDER_LOAD_S}, ward.accused
    late = {
        fault: ward.found_after_s(fault)
        for fault, bound in UNDER_LOAD_S.items()
        if ward.found_after_s(fault) > bound
    }
    assert not late


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_beside_24_busy_processes_goes_on_and_its_stopped_primary_is_replaced(tmp_path: Path) -> None:
    """Two cells of the matrix on a real flow, in one run."""
    matrix = Matrix(tmp_path, "busy", rehearsals=1)
    try:
        cells = [matrix.healthy(20), matrix.replaced("stopped")]
        assert all(cell.ok for cell in cells), "\n".join(map(str, cells))
        status, said = matrix.guard.stop()
        assert status == 0, said
    finally:
        matrix.guard.close()


def _has_begun(ward: Ward, worker: str) -> bool:
    watch = ward.watching.watches.get(worker)
    return watch is not None and watch.belief is not None and len(watch.belief.intervals_ms) >= 4


@pytest.mark.timeout(120)
def test_who_is_stuck_is_found_though_its_lease_rises(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody moves the plan here; only whoever burns CPU is at work on it."""
    monkeypatch.setattr(limits, "STUCK_MS_MIN", 4_000)
    monkeypatch.setattr(limits, "STUCK_LOOK_AFTER_MS", 1_000)
    monkeypatch.setattr(limits, "STUCK_CPU_SHARE", 0.9)
    ward.admit("waits")
    ward.fell_ill["waits"] = time.monotonic()
    ward.watch(60, enough=lambda: bool(ward.accused))
    assert "it is stuck: epoch 7 of totals has not moved" in ward.accused["waits"][1]


@pytest.mark.timeout(120)
def test_wrong_rules_are_found_out(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge who takes CPU time for life misses a burning interpreter; a lease that native code raises hides any held one."""
    ward.admit("regex")
    ward.admit("asleep", ILL_NATIVE="1")
    ward.watch(30, enough=lambda: all(_has_begun(ward, worker) for worker in ward.rows))
    gains_cpu_is_alive(monkeypatch)
    for fault in ("regex", "asleep"):
        ward.fall_ill(fault, fault)
    ward.watch(6)
    assert not ward.accused
    monkeypatch.undo()
    ward.watch(30, enough=lambda: "regex" in ward.accused)
    assert {*ward.accused} == {"regex"}, (
        "by the right rule it is found, and the native lease still hides the other"
    )


@pytest.mark.timeout(120)
def test_a_judge_who_goes_by_the_clock_alone_accuses_the_starved(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward.admit("well and nice", nice=True)
    ward.watch(30, enough=lambda: all(_has_begun(ward, worker) for worker in ward.rows))
    wall_clock_only(monkeypatch)
    with busy(24):
        ward.watch(90, enough=lambda: bool(ward.accused))
    assert ward.accused
