"""The ledger's file is in the work directory, whatever that is called; nobody stands in the way of writers for long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import groups, holder, schema, sqlite_lock
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.process import Process
from holdfast.ledger.status import status


@pytest.mark.parametrize("name", ["what?", "a?mode=memory&b", "#1", "100%20", "file:x", "ä b"])
def test_a_work_directory_may_have_any_name(name: str, tmp_path: Path) -> None:
    work = tmp_path / name
    work.mkdir()
    with closing(Ledger(work)) as ledger:
        assert holder.take(ledger, "flow") == 1
    assert (work / "ledger.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with closing(Ledger(work)) as again:
        assert holder.take(again, "flow") == 2
    with reading(work):
        assert status(work)["flow"] == "flow"


STANDING_STILL = """
import os, signal, sqlite3, sys
input()
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("in", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def standing_still_in_a_transaction(work: Path, noted: Ledger | None = None) -> Iterator[Process]:
    """A process that holds the write lock and is stopped; one of the flow's, if it is noted in the ledger."""
    command = [sys.executable, "-c", STANDING_STILL, str(work / "ledger.db")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1, text=True
    ) as process:
        try:
            found = Process.here(process.pid)
            if noted is not None:
                groups.note_process(noted, "main-standby", found)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            assert process.stdout.readline() == "in\n"
            yield found
        finally:
            process.kill()


def test_whoever_waits_ends_the_worker_that_stands_still_inside_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads no group, and nobody but the writer that waits is there to see it."""
    monkeypatch.setattr(limits, "LEDGER_LOOK_MS", 200)
    monkeypatch.setattr(limits, "LEDGER_HOLD_MS_MAX", 1_000)
    with closing(Ledger(tmp_path)) as ledger:
        holder.take(ledger, "flow")
        with standing_still_in_a_transaction(tmp_path, noted=ledger) as hung:
            began = time.monotonic()
            with pytest.raises(FencedError), ledger.write(7):
                pass
            assert 1 <= time.monotonic() - began < 10
            assert not hung.lives()
        with ledger.read() as tx:
            events = schema.events
            freed = tx.execute(sa.select(events.c.reason).where(events.c.kind == "lock freed")).scalars()
            assert freed.all() == [
                f"process {hung.pid} stood still inside a transaction of the ledger for 1 s, and was ended"
            ]


def test_who_counts_as_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor knows of a silent worker before anybody has waited for its transaction."""
    monkeypatch.setattr(limits, "LEDGER_HOLD_MS_MAX", 1 << 40)
    with closing(Ledger(tmp_path)) as ledger:
        holder.take(ledger, "flow")
        with standing_still_in_a_transaction(tmp_path, ledger) as hung:
            ledger.free(Process.myself())
            assert hung.lives(), "it was somebody else's lock"
            ledger.free(hung)
            assert not hung.lives()
        with ledger.read() as tx:
            kinds = tx.execute(sa.select(schema.events.c.kind)).scalars().all()
        assert kinds.count("lock freed") == 1
        ledger.free(hung)
        holder.release(ledger, 1)


def test_a_process_of_somebody_else_is_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEDGER_LOOK_MS", 100)
    monkeypatch.setattr(limits, "LEDGER_HOLD_MS_MAX", 300)
    monkeypatch.setattr(limits, "LEDGER_BUSY_MS_MAX", 1_000)
    with closing(Ledger(tmp_path)) as ledger:
        holder.take(ledger, "flow")
        with standing_still_in_a_transaction(tmp_path) as other:
            with pytest.raises(
                LedgerError, match=f"locked by process {other.pid}.*no process of this flow"
            ) as busy:
                holder.release(ledger, 1)
            assert busy.value.heals
            assert other.lives()
        holder.release(ledger, 1)


def test_looking_at_the_lock_takes_no_lock_away(tmp_path: Path) -> None:
    """Closing a descriptor of the file would: POSIX gives locks to a process, not to a descriptor."""
    with closing(Ledger(tmp_path)) as ledger:
        holder.take(ledger, "flow")
        with ledger.write(1):
            assert sqlite_lock.writer(tmp_path / "ledger.db") is None
            assert is_locked_for_others(tmp_path)
        assert not is_locked_for_others(tmp_path)


def is_locked_for_others(work: Path) -> bool:
    code = "import sys; from pathlib import Path; from holdfast.verify.damage import is_locked; "
    code += "print(is_locked(Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(work / "ledger.db")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
