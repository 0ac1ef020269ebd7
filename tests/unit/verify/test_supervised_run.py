"""The parts of a supervised run: who forks its workers, and the items that are held back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from holdfast.core.limits import PROCESS_END_MS_MAX
from holdfast.flow import policies
from holdfast.ledger.process import Process
from holdfast.runtime.script import Script
from holdfast.runtime.starting import log_of
from holdfast.runtime.worker_spec import WorkerSpec
from holdfast.verify.actor import Actor
from holdfast.verify.held_back import HeldBack
from holdfast.verify.nursery import Nursery, Ward
from holdfast.verify.variants import WITH_STANDBYS, _can_stand_by, _standing_by


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    def live(number: int, spec: WorkerSpec) -> None:
        os.write(1, f"{number} lives as {spec.worker}\n".encode())
        time.sleep(60 if spec.group == "long" else 0)

    made = Nursery(live, tmp_path / "log")
    yield made
    made.close()


def told(tmp_path: Path, worker: str, group: str = "short") -> WorkerSpec:
    return WorkerSpec("flow", str(tmp_path), worker, group)


def test_workers_are_forked_in_order_and_have_a_log_each(tmp_path: Path, nursery: Nursery) -> None:
    wards = [nursery.start("flow", told(tmp_path, name), {}) for name in ("a", "b")]
    assert within(10, lambda: all(ward.poll() is not None for ward in wards))
    assert [log_of(tmp_path, name).read_text() for name in ("a", "b")] == ["0 lives as a\n", "1 lives as b\n"]


def test_workers_are_counted_by_group_and_lead_a_session_each(tmp_path: Path, nursery: Nursery) -> None:
    wards = [nursery.start("flow", told(tmp_path, name, name[0]), {}) for name in ("a-1", "b-1", "a-2")]
    assert within(10, lambda: all(ward.poll() is not None for ward in wards))
    said = [log_of(tmp_path, name).read_text() for name in ("a-1", "b-1", "a-2")]
    assert said == ["0 lives as a-1\n", "0 lives as b-1\n", "1 lives as a-2\n"]
    sleeper = nursery.start("flow", told(tmp_path, "long", "long"), {})
    assert within(10, lambda: os.getsid(sleeper.pid) == sleeper.pid)


def test_a_worker_outlives_the_supervisor_that_had_it_started_and_ends_with_the_nursery(
    tmp_path: Path, nursery: Nursery
) -> None:
    supervisor = Actor(
        lambda: nursery.start("flow", told(tmp_path, "a", "long"), {}).pid, tmp_path / "supervisor"
    )
    worker = Process.here(int(str(supervisor.wait().returned())))
    assert worker.lives()
    nursery.close()
    assert within(PROCESS_END_MS_MAX / 1000, lambda: not worker.lives())


def test_an_answer_to_a_supervisor_that_was_killed_is_nobodys(tmp_path: Path, nursery: Nursery) -> None:
    # It asked, and did not live to hear the answer.
    nursery._socket.send(told(tmp_path, "a", "long").to_json().encode())
    ward = nursery.start("flow", told(tmp_path, "b", "long"), {})
    assert within(
        10, lambda: log_of(tmp_path, "b").exists() and "1 lives as b" in log_of(tmp_path, "b").read_text()
    )
    assert ward.poll() is None
    os.kill(ward.pid, signal.SIGKILL)
    assert within(10, lambda: ward.poll() is not None)
    assert Ward(ward.pid).poll() is not None


def test_items_that_are_held_back_are_waited_for(tmp_path: Path) -> None:
    go = tmp_path / "go"
    held = HeldBack.of(Script({"rows": 6}, found={"rows": [None] * 8}), go, {"rows": 3})  # type: ignore[list-item]
    assert held.room("rows", 1) == 2
    heard: list[int | None] = []
    waiting = Thread(target=lambda: heard.append(held.room("rows", 3)), daemon=True)
    waiting.start()
    time.sleep(0.2)
    assert not heard
    go.touch()
    waiting.join(10)
    assert heard == [3]
    assert held.room("rows", 6) == 0


def test_policies_that_keep_nothing_for_a_standby_have_none() -> None:
    without = {name for name, make in WITH_STANDBYS.items() if not _can_stand_by(make())}
    assert without == {"gap", "upstream_backup"}
    assert _standing_by(policies.no_sync(), 3) == policies.no_sync(members=3)
    assert _standing_by(policies.active_standby(), 3) == policies.active_standby(members=3)
    assert _standing_by(policies.no_sync(members=4), 3) == policies.no_sync(members=4)
