"""A chapter of the tutorial, walked from an empty directory block by block, and what became of the worker that it kills.

What a worker's death is judged by: its pid and name as `holdfast workers` showed them before the kill, the processes of this
machine after it, and the ledger, which says who was replaced and why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.ledger import groups
from holdfast.ledger.ledger import reading
from holdfast.ledger.location import is_work_directory
from holdfast.ledger.process import Process
from holdfast.ledger.status import status
from holdfast.runtime.evidence import end_kin, kin
from pages import blocks, shell

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial"
PROGRAM = re.compile(r"`(\w+\.py)`[^`]*:\n\n```python\n(.*?)```", re.DOTALL)
PRIMARY = re.compile(r"^main \(generation \d+\) +(\S+) +primary +active +(\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class Walk:
    """A directory in which a reader follows a chapter."""

    home: Path
    page: Path
    flow: str | None = None  # of several that a chapter runs

    @classmethod
    def begin(cls, home: Path, chapter: str) -> Walk:
        """Write the chapter's programs into files of the names that it gives to them."""
        page = TUTORIAL / chapter
        programs = PROGRAM.findall(page.read_text())
        assert [code for _, code in programs] == blocks(page, "python"), "a program without a name"
        for name, code in programs:
            (home / name).write_text(code)
        return cls(home, page)

    @property
    def commands(self) -> list[str]:
        return blocks(self.page, "sh")

    def type(self, command: str) -> str:
        """What a block of commands says."""
        return shell(self.home, command)

    def of(self, flow: str) -> Walk:
        """The same walk, as far as one of its flows is concerned."""
        return replace(self, flow=flow)

    @property
    def work(self) -> Path:
        if self.flow is not None:
            return self.home / "work" / self.flow
        (found,) = (path for path in (self.home / "work").iterdir() if is_work_directory(path))
        return found

    def killed(self, said: str) -> str:
        """The worker that led when `holdfast workers` was typed; its process must be gone by now."""
        ((worker, pid),) = PRIMARY.findall(said)
        assert int(pid) not in kin(Process.here(int(pid)), worker), f"{worker} lives"
        assert (self.work / "logs" / f"{worker}.log").exists()
        return str(worker)

    def replaced(self, said: str) -> str:
        """How the ledger tells that the worker was replaced, once and because its process had ended."""
        worker = self.killed(said)
        (one,) = status(self.work)["failovers"]["newest"]
        heir, _, why = one["reason"].partition(" goes on; ")
        assert heir != worker
        assert why == f"{worker} is gone: its process has ended"
        return f"failover: main: {one['reason']}"

    def recovered(self) -> dict[str, list[str]]:
        """By stage, what successors did for it, from the first to the last."""
        with reading(self.work) as tx:
            found = tx.exec_driver_sql(
                "select stage, reason from events where kind = 'recovered' order by seq"
            )
            rows = found.all()
        return {stage: [reason for other, reason in rows if other == stage] for stage, _ in rows}

    def end(self) -> None:
        """End what a walk that was cut off has left running."""
        for root in (self.home / "work").glob("*"):
            if not is_work_directory(root):
                continue
            with reading(root) as tx:
                left = groups.noted_processes(tx)
            supervisor = status(root)["holder"]
            if supervisor is not None:
                Process(**supervisor).end()
            for worker, process in left.items():
                end_kin(process, worker)
