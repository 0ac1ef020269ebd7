"""What a supervised run reads of its workers: who leads, who stands by, who stands still, and who was replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.ledger import groups, holder
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.process import Process
from holdfast.protocols.supervision import FINISHED, READY
from holdfast.verify.crew import Crew, replaced_at


@pytest.fixture
def child() -> Iterator[Process]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield Process.here(process.pid)
        process.kill()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    yield made
    made.close()


def test_there_is_nobody_before_there_is_a_ledger(tmp_path: Path) -> None:
    assert Crew.of(tmp_path) == Crew(())
    assert replaced_at(tmp_path) == []


def test_who_leads_and_who_stands_by(tmp_path: Path, ledger: Ledger, child: Process) -> None:
    mine = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, mine, {}, {"g": ["s"]})
    wanted = [{"name": "g", "members": 2, "hot": False}]
    for worker, process in (("a", Process.myself()), ("b", child)):
        groups.add_worker(ledger, mine, worker, "g", "test")
        groups.note_process(ledger, worker, process)
    groups.assign(ledger, mine, "g", "a", ["a"], "first")
    assert not Crew.of(tmp_path).is_complete(wanted), "they are still starting"
    for worker in ("a", "b"):
        groups.update_worker(ledger, worker, status=READY)
    crew = Crew.of(tmp_path)
    assert crew.is_complete(wanted)
    assert not crew.is_complete([{"name": "g", "members": 2, "hot": True}]), "a hot standby computes as well"
    assert not crew.is_complete([*wanted, {"name": "h", "members": 1, "hot": False}]), (
        "another group has nobody"
    )
    (leader,) = crew.leaders
    assert (leader.name, leader.process) == ("a", Process.myself())
    standby = crew.fellow(leader)
    assert standby is not None
    assert standby.name == "b"
    assert crew.fellow(standby) == leader, "with a standby dies the one that leads"
    os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while child.lives() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert crew.fellow(leader) is None
    assert not Crew.of(tmp_path).is_complete(wanted)


def test_a_hot_group_is_complete_when_all_compute(tmp_path: Path, ledger: Ledger, child: Process) -> None:
    mine = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, mine, {}, {"g": ["s"]})
    for worker, process in (("a", Process.myself()), ("b", child)):
        groups.add_worker(ledger, mine, worker, "g", "test")
        groups.note_process(ledger, worker, process)
        groups.update_worker(ledger, worker, status=READY)
    groups.assign(ledger, mine, "g", "a", ["a"], "first")
    hot = [{"name": "g", "members": 2, "hot": True}]
    assert not Crew.of(tmp_path).is_complete(hot)
    groups.admit(ledger, mine, "g", "b")
    assert Crew.of(tmp_path).is_complete(hot)
    assert not Crew.of(tmp_path).has_finished
    groups.update_worker(ledger, "a", status=FINISHED)
    assert Crew.of(tmp_path).has_finished


def test_who_stands_still_is_found(tmp_path: Path, ledger: Ledger, child: Process) -> None:
    mine = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, mine, {}, {"g": ["s"]})
    groups.add_worker(ledger, mine, "b", "g", "test")
    groups.note_process(ledger, "b", child)
    assert Crew.of(tmp_path).stopped() is None
    os.kill(child.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while Crew.of(tmp_path).stopped() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    found = Crew.of(tmp_path).stopped()
    assert found is not None
    assert (found.name, found.process) == ("b", child)


def test_fail_overs_and_expulsions_are_counted_and_a_first_start_is_not(
    tmp_path: Path, ledger: Ledger
) -> None:
    mine = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, mine, {}, {"g": ["s"]})
    groups.assign(ledger, mine, "g", "a", ["a"], "first")
    assert replaced_at(tmp_path) == []
    groups.assign(ledger, mine, "g", "b", ["b"], "b goes on")
    assert len(replaced_at(tmp_path)) == 1
    groups.add_worker(ledger, mine, "c", "g", "test")
    groups.admit(ledger, mine, "g", "c")
    groups.expel(ledger, mine, "g", "c", "it is gone")
    assert len(replaced_at(tmp_path)) == 2
    assert replaced_at(tmp_path) == sorted(replaced_at(tmp_path))
