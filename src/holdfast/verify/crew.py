"""The workers of a supervised run, and what has befallen them, as its ledger has it.

It is asked anew every time, and let go of at once: who asks forks, and a connection does not survive that.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.ledger.groups import EXPELLED, FAILOVER
from holdfast.ledger.process import Process
from holdfast.protocols.supervision import ACTIVE, READY

_REPLACED = (FAILOVER, EXPELLED)
_HERE = (READY, ACTIVE)


@dataclass(frozen=True)
class Crew:
    """Who runs a flow just now."""

    workers: Mapping[str, Process]  # those that have begun to live
    here: Sequence[str]  # who is ready, or at work
    primaries: Sequence[str]
    members: Sequence[str]  # who may commit, primaries included

    @classmethod
    def of(cls, work: Path) -> Crew:
        """As the ledger of a work directory has it."""
        workers = _rows(work, "select worker, status, holder from workers order by started_ms")
        groups = _rows(work, 'select "primary", members from groups')
        return cls(
            {name: Process(**json.loads(held)) for name, _, held in workers if held},
            [name for name, status, _ in workers if status in _HERE],
            [primary for primary, _ in groups if primary],
            [member for _, members in groups for member in json.loads(members)],
        )

    @property
    def leaders(self) -> list[Process]:
        """The process of every group that leads it."""
        return [self.workers[name] for name in self.primaries]

    @property
    def standbys(self) -> list[Process]:
        """The processes that lead nothing, and could."""
        found = [self.workers[name] for name in self.here if name not in self.primaries]
        return [process for process in found if process.lives()]

    def stopped(self) -> tuple[str, Process] | None:
        """The worker that stands still, if one does."""
        return next((one for one in self.workers.items() if _stands_still(one[1])), None)

    def is_complete(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all are here that a flow's groups want, and those of hot ones compute."""
        wanted = sum(group["members"] for group in groups)
        hot = sum(group["members"] for group in groups if group["hot"])
        return len(self.here) >= wanted and len(self.members) >= hot and len(self.primaries) == len(groups)


def replaced_at(work: Path) -> list[float]:
    """When somebody was replaced or fenced off, by the clock, the first time first."""
    return [
        at / 1000 for (at,) in _rows(work, f"select at_ms from events where kind in {_REPLACED} order by seq")
    ]


def _rows(work: Path, query: str) -> list[tuple[Any, ...]]:
    path = work / "ledger.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=30)) as ledger:
        try:
            return ledger.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []  # It was just made.


def _stands_still(found: Process) -> bool:
    try:
        return Path(f"/proc/{found.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
