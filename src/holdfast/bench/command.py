"""`holdfast run` on the policies' job, as a user would start it: watched through its ledger, fed, killed and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from holdfast.bench.feed import Feed, Pool
from holdfast.bench.outage import Commit
from holdfast.bench.policy_job import SOURCE, STAGE, Case, flow_text
from holdfast.core import limits
from holdfast.core.errors import HoldfastError, LedgerError
from holdfast.core.python_path import SAFELY
from holdfast.flow.policies import Standby
from holdfast.ledger import groups, schema
from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.ledger.ledger import reading
from holdfast.protocols.supervision import ACTIVE

MASTER = "local[2]"

# How often the ledger is looked at: no figure depends on it, and looking costs what the flow could use.
POLL_S = 0.2
WAIT_S_MAX = 300
STOP_S_MAX = 90
_LOG_TAIL = 2_000


@dataclass(frozen=True)
class View:
    """The flow's only group at one moment."""

    group: GroupRow
    workers: tuple[WorkerRow, ...]
    head: int
    read: int  # files

    @property
    def primary(self) -> WorkerRow | None:
        """The worker that leads, if its process has said which one it is."""
        found = [worker for worker in self.workers if worker.worker == self.group.primary and worker.process]
        return found[0] if found else None

    def stands_by(self, standby: Standby) -> bool:
        """Whether somebody could go on at once, as far as the policy has anybody stand by."""
        others = [
            w for w in self.workers if w.worker != self.group.primary and w.process and w.process.lives()
        ]
        match standby:
            case Standby.NONE:
                return True
            case Standby.WARM:
                return any(worker.rehearsals >= limits.REHEARSALS_TO_BE_WARM for worker in others)
            case Standby.HOT:
                return any(w.worker in self.group.members and w.status == ACTIVE for w in others)


class Command:
    """The command on a home directory of its own."""

    def __init__(self, home: Path, case: Case, pool: Pool) -> None:
        self.case = case
        self.root = home / "work"
        self.feed = Feed(pool, home / "in")
        self.feed.keep_ahead(0)
        self._log = home / "log"
        flow = home / "flow.py"
        flow.write_text(flow_text(case.name, self.feed.directory))
        words = ["run", str(flow), "--work-dir", str(self.root), "--master", MASTER, "--quiet"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *SAFELY, "-m", "holdfast", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def look(self) -> View | None:
        """The flow as the ledger has it now; None before it has anything to show."""
        try:
            with reading(self.root) as tx:
                [group] = groups.all_groups(tx).values()
                workers, heads = tuple(groups.all_workers(tx)), groups.heads(tx)
                read = tx.execute(
                    sa.select(schema.cursors.c.processed).where(
                        schema.cursors.c.consumer == f"stage:{STAGE}",
                        schema.cursors.c.input == f"source:{SOURCE}",
                    )
                ).scalar()
        except (LedgerError, ValueError):
            return None
        return View(group, workers, heads.get(STAGE, -1), int(read or 0))

    def wait(self, what: str, condition: Callable[[View], bool], *, coming: bool = False) -> View:
        """Keep feeding until something is so. With `coming`, files come also while nobody reads any."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            seen = self.look()
            if seen is not None:
                self.feed.keep_ahead(seen.read)
                if condition(seen):
                    return seen
            if coming:
                self.feed.give()
            self._refuse_end(what, time.monotonic() > deadline)
            time.sleep(POLL_S)

    def settle(self, epochs: int) -> View:
        """Wait until somebody stands by, if anybody should, and so many epochs were committed since."""
        standby = self.case.standby
        ready = self.wait(f"{self.case.name}: a standby", lambda seen: _ready(seen, standby))
        return self.wait(
            f"{self.case.name}: {epochs} epochs",
            lambda seen: seen.head >= ready.head + epochs and _ready(seen, standby),
        )

    def kill_primary(self) -> float:
        """kill -9 the process that leads; when, in milliseconds of the wall clock."""
        seen = self.look()
        primary = seen.primary if seen else None
        if primary is None or primary.process is None:
            raise HoldfastError("there is no primary to kill", operation="bench")
        at_ms = time.time_ns() / 1e6
        os.kill(primary.process.pid, signal.SIGKILL)
        return at_ms

    def commits(self, first: int = 0) -> list[Commit]:
        """The epochs from one on that read rows."""
        table = schema.manifests
        wanted = sa.select(table.c.epoch, table.c.committed_ms, table.c.body)
        with reading(self.root) as tx:
            found = tx.execute(wanted.where(table.c.stage == STAGE, table.c.epoch >= first))
            return sorted(
                (
                    Commit(epoch, at_ms, body["seconds"])
                    for epoch, at_ms, body in found.all()
                    if body["rows_in"]
                ),
                key=lambda commit: commit.epoch,
            )

    def event_ms(self, kind: str, after_ms: float = 0.0) -> int | None:
        """When the first event of a kind after a moment was."""
        table = schema.events
        wanted = sa.select(sa.func.min(table.c.at_ms)).where(table.c.kind == kind, table.c.at_ms > after_ms)
        with reading(self.root) as tx:
            return tx.execute(wanted).scalar()

    def stop(self) -> None:
        """A clean stop."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_S_MAX)
        if status != 0:
            raise HoldfastError(f"holdfast run ended with status {status}: {self._said()}", operation="bench")

    def close(self) -> None:
        """End what is left: the command first, or it would start others."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        seen = self.look()
        for worker in seen.workers if seen else ():
            if worker.process:
                worker.process.end()

    def _refuse_end(self, what: str, late: bool) -> None:
        if self.process.poll() is not None:
            raise HoldfastError(f"holdfast run ended before {what}: {self._said()}", operation="bench")
        if late:
            raise HoldfastError(f"not within {WAIT_S_MAX} s: {what}; {self._said()}", operation="bench")

    def _said(self) -> str:
        logs = [self._log, *sorted((self.root / "logs").glob("*.log"))]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-_LOG_TAIL:]}" for log in logs)


@contextmanager
def commanded(home: Path, case: Case, pool: Pool) -> Iterator[Command]:
    """The command for as long as it is needed, on a directory that is made for it."""
    home.mkdir(parents=True)
    command = Command(home, case, pool)
    try:
        yield command
        command.stop()
    finally:
        command.close()


def _ready(seen: View, standby: Standby) -> bool:
    return seen.primary is not None and seen.head >= 0 and seen.stands_by(standby)
