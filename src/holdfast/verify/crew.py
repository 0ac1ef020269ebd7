"""The workers of a supervised run, and what has befallen them, as its ledger has it.

It is asked anew every time, and let go of at once: who asks forks, and a connection does not survive that.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.json import Json
from holdfast.ledger.groups import EXPELLED, FAILOVER
from holdfast.ledger.process import Process
from holdfast.protocols.supervision import ACTIVE, FINISHED, READY

_REPLACED = (FAILOVER, EXPELLED)


@dataclass(frozen=True)
class Hand:
    """One worker."""

    name: str
    group: str
    status: str
    process: Process
    leads: bool
    computes: bool  # with the one that leads, if it is not that one

    @property
    def is_here(self) -> bool:
        """Whether it is ready, or at work."""
        return self.status in (READY, ACTIVE) and self.process.lives()


@dataclass(frozen=True)
class Crew:
    """Who runs a flow just now."""

    hands: tuple[Hand, ...]

    @classmethod
    def of(cls, work: Path) -> Crew:
        """As the ledger of a work directory has it."""
        groups = {
            group: (primary, json.loads(members))
            for group, primary, members in _rows(work, 'select "group", "primary", members from groups')
        }
        found = []
        for name, group, status, held in _rows(work, 'select worker, "group", status, holder from workers'):
            primary, members = groups.get(group, (None, ()))
            if held:
                process = Process(**json.loads(held))
                found.append(Hand(name, group, status, process, name == primary, name in members))
        return cls(tuple(found))

    @property
    def leaders(self) -> list[Hand]:
        """Who leads a group."""
        return [hand for hand in self.hands if hand.leads]

    @property
    def has_finished(self) -> bool:
        """Whether a group has come to its end."""
        return any(hand.status == FINISHED for hand in self.hands)

    def stopped(self) -> Hand | None:
        """Who stands still, if anybody does."""
        return next((hand for hand in self.hands if _stands_still(hand.process)), None)

    def fellow(self, hand: Hand) -> Hand | None:
        """Who of the same group dies with somebody: the one that leads it, or else one that stands by."""
        others = [
            one for one in self.hands if one.group == hand.group and one.name != hand.name and one.is_here
        ]
        return max(others, key=lambda one: one.leads, default=None)

    def is_complete(self, groups: Sequence[Json]) -> bool:
        """Whether every group has all that it wants, and of a hot one all compute."""
        return all(self._is_complete(group) for group in groups)

    def _is_complete(self, group: Json) -> bool:
        here = [hand for hand in self.hands if hand.group == group["name"] and hand.is_here]
        computing = here if not group["hot"] else [hand for hand in here if hand.computes]
        return len(computing) >= group["members"] and any(hand.leads for hand in here)


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
