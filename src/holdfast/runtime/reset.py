"""Starting over: removes all that a flow has left in its work directory and, if asked, in the targets of its sinks.

Invariants: nothing is removed while a process runs the flow, or when a target cannot be emptied. A mark in the work
directory is there before anything goes and until all of it is gone, so that a reset that was cut off is not taken for a loss
of files: no run begins, and the same command finishes it. Targets go first and the ledger last, so that what is left is
always refused and never taken for the whole. Files that are not ours stay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import LedgerError
from holdfast.core.json import Json
from holdfast.flow.flow_plan import FlowPlan
from holdfast.ledger import holder
from holdfast.ledger import location as locations
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.location import FILE_NAME, POINTER_NAME, RESET_NAME, InFile
from holdfast.ledger.process import Process
from holdfast.runtime.lease import LEASES
from holdfast.runtime.rehearsal import SCRATCH
from holdfast.runtime.starting import LOGS
from holdfast.sinks.clearing import Clearing, Left, clearing_of
from holdfast.sources.stream_log import STREAMS
from holdfast.storage import atomic, removal
from holdfast.storage.shipper import STANDBY
from holdfast.storage.workdir import DATA, TABLES

_DIRECTORIES = (DATA, TABLES, STANDBY, STREAMS, SCRATCH, LEASES, LOGS)
_LEDGER_FILES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", POINTER_NAME, RESET_NAME)


@dataclass(frozen=True)
class Found:
    """What a reset would remove."""

    directories: tuple[tuple[Path, removal.Measured], ...]
    ledger: str | None  # where it is; None if there is none
    targets: tuple[tuple[str, Left], ...]  # by sink
    running: Process | None

    def to_json(self) -> Json:
        """As `holdfast reset --json` prints it."""
        return {
            "directories": [{"path": str(path), **vars(size)} for path, size in self.directories],
            "ledger": self.ledger,
            "targets": [{"sink": name, **vars(left)} for name, left in self.targets],
            "running": vars(self.running) if self.running else None,
        }


class Reset:
    """One flow, to be started over."""

    def __init__(self, plan: FlowPlan, work_dir: str | Path, *, targets: bool) -> None:
        self._plan = plan
        self._root = Path(work_dir).resolve()
        mark = self._root / RESET_NAME
        self._begun: Json = json.loads(mark.read_text()) if mark.is_file() else {}
        self._clearings = _clearings(plan) if targets or self._begun.get("targets") else []

    def find(self) -> Found:
        """What there is; nothing is changed."""
        sizes = [(path, removal.measured(parts)) for path, parts in self._parts().items()]
        left = [(name, clearing.left(self._plan.name)) for name, clearing in self._clearings]
        return Found(
            tuple((path, size) for path, size in sizes if size.files),
            self._place(),
            tuple((name, one) for name, one in left if one is not None),
            self._running(),
        )

    def carry_out(self) -> Found:
        """Remove it; what was there."""
        found = self.find()
        if found.running:
            raise LedgerError(
                f"process {found.running.pid} on {found.running.host} is running this flow",
                operation="reset",
                hint="Stop it first. If its host is gone for good, take the flow over once: `holdfast run --take-over`.",
            )
        ledger = self._taken()
        if self._root.is_dir():
            atomic.write_atomic(
                self._root / RESET_NAME, json.dumps({"targets": bool(self._clearings)}).encode()
            )
        for _, clearing in self._clearings:
            clearing.clear(self._plan.name)
        for path, parts in self._parts().items():
            for part in parts:
                removal.remove(part)
            removal.remove_if_empty(path)
        if ledger is not None:
            ledger.drop()
        for name in _LEDGER_FILES:
            removal.remove(self._root / name)
        removal.remove_if_empty(self._root)
        return found

    def _parts(self) -> dict[Path, list[Path]]:
        """What is to go, by the directory that it is in.

        A replica may hold copies of other flows' files: those of ours have the names that are in the work directory, so
        they go before these.
        """
        copies = self._copies(Path(self._plan.replica).resolve()) if self._plan.replica else {}
        return {**copies, **{self._root / name: [self._root / name] for name in _DIRECTORIES}}

    def _copies(self, home: Path) -> dict[Path, list[Path]]:
        found: dict[Path, list[Path]] = {}
        for one in (*(self._root / DATA).glob("*/*"), *(self._root / TABLES).glob("*/*")):
            copy = home / one.relative_to(self._root)
            if copy.exists():
                found.setdefault(copy.parent, []).append(copy)
        return found

    def _place(self) -> str | None:
        """Where the ledger is; None where there is none, or none any more."""
        if not locations.is_work_directory(self._root):
            return None
        where = locations.found(self._root)
        return str(where.file) if isinstance(where, InFile) else f"{where.url}, schema {where.schema}"

    def _running(self) -> Process | None:
        """Who runs the flow. Where a reset was cut off, the ledger may be gone in part: whoever opens it looks again."""
        if self._begun or self._place() is None:
            return None
        with reading(self._root) as tx:
            return holder.running(tx)

    def _taken(self) -> Ledger | None:
        """The ledger, with this process as the flow's holder; None where there is none."""
        if self._place() is None:
            return None
        ledger = Ledger(self._root, resetting=True)
        try:
            holder.take(ledger, self._plan.name)
        except LedgerError:
            ledger.close()
            raise
        return ledger


def _clearings(plan: FlowPlan) -> Sequence[tuple[str, Clearing]]:
    return [(sink.name, clearing_of(sink.name, sink.description)) for sink in plan.sinks]
