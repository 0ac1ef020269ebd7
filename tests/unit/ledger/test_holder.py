"""One process holds a flow; the dead are replaced at once, the living only by force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import holder, schema
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.process import Process
from registered import register_stage


def hold_as(ledger: Ledger, other: Process) -> None:
    holder.take(ledger, "flow")
    with ledger.unfenced_write() as tx:
        tx.execute(sa.update(schema.flow).values(holder=asdict(other)))


def test_a_living_holder_is_named_and_kept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ledger = Ledger(tmp_path)
        hold_as(ledger, Process.here(process.pid))
        with pytest.raises(LedgerError, match=f"process {process.pid} on .* --take-over"):
            holder.take(ledger, "flow")
        assert holder.take(ledger, "flow", by_force=True) == 2
        process.communicate(b"\n")


def test_a_dead_holder_is_replaced_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    ledger = Ledger(tmp_path)
    hold_as(ledger, Process(Process.myself().host, process.pid, "12345"))
    assert holder.take(ledger, "flow") == 2


def test_a_later_process_with_the_same_pid_is_not_the_holder(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    hold_as(ledger, replace(Process.myself(), pid=os.getppid(), started="1"))
    assert holder.take(ledger, "flow") == 2


def test_a_holder_on_another_host_counts_as_living(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    hold_as(ledger, Process("another-host.invalid", 1, "1"))
    with pytest.raises(LedgerError, match=r"another-host\.invalid"):
        holder.take(ledger, "flow")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    holder.take(ledger, "flow")
    with ledger.unfenced_write() as tx:
        tx.execute(sa.update(schema.flow).values(format_version=99))
    with pytest.raises(LedgerError, match="format version 99"):
        holder.take(ledger, "flow")


def test_taking_a_flow_closes_what_its_predecessor_had_under_way(tmp_path: Path) -> None:
    from holdfast.ledger import epochs

    ledger = Ledger(tmp_path)
    generation = holder.take(ledger, "flow")
    register_stage(ledger, generation, "s", None, [])
    with ledger.read() as tx:
        row = epochs.stage_row(tx, "s")
    epochs.open_attempt(ledger, row, "epoch", 0)
    holder.take(ledger, "flow", by_force=True)
    with ledger.read() as tx:
        assert tx.execute(sa.select(schema.attempts.c.status)).scalars().all() == ["closed"]


def test_a_torn_ledger_is_a_ledger_error(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    holder.take(ledger, "flow")
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(tmp_path)


def test_events_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.ledger.ledger import record_event

    monkeypatch.setattr(limits, "EVENTS_MAX", 50)
    ledger = Ledger(tmp_path)
    with ledger.unfenced_write() as tx:
        for number in range(1000):
            record_event(tx, "test", str(number))
    with ledger.read() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(schema.events)).scalar_one() == 50


STUCK = """
import os, signal, sys
from pathlib import Path
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
holder.take(ledger, "flow")
with ledger.write(1):
    print("in", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_holder_stopped_inside_a_transaction_is_named_and_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEDGER_LOOK_MS", 100)
    monkeypatch.setattr(limits, "LEDGER_HOLD_MS_MAX", 500)
    command = [sys.executable, "-c", STUCK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        with pytest.raises(LedgerError, match=f"process {process.pid}"):
            holder.take(Ledger(tmp_path), "flow")
        assert holder.take(Ledger(tmp_path), "flow", by_force=True) == 2
        assert process.wait() == -signal.SIGKILL


def test_a_deposed_process_cannot_act_in_its_successors_name(tmp_path: Path) -> None:
    from holdfast.storage.shipper import Route, ship
    from holdfast.storage.sweeper import sweep

    ledger = Ledger(tmp_path)
    mine = holder.take(ledger, "flow")
    register_stage(ledger, mine, "s", None, [])
    assert not ship(ledger, tmp_path, "s", mine, Route())
    holder.take(ledger, "flow", by_force=True)
    for act in (
        lambda: ship(ledger, tmp_path, "s", mine, Route()),
        lambda: sweep(ledger, tmp_path, "s", mine, [], Route(), lambda: nullcontext(())),
        lambda: ledger.refuse_deposed(mine),
    ):
        with pytest.raises(FencedError, match="generation 1 was deposed"):
            act()
