"""Snapshots that people ask for: wished, named, found again and deleted.

Invariants: a name belongs to one snapshot among those that are kept or on their way; what a failure would return to is
not deleted, and neither is what is on its way.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.ledger import schema, snapshots
from holdfast.ledger.holder import running
from holdfast.ledger.ledger import record_event
from holdfast.ledger.readers import writing
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols.snapshots import ABORTED, ASKED, DONE, PREPARING, kept

LATEST = "latest"


def kept_numbers(found: list[Snapshot]) -> set[int]:
    """Of all snapshots, those that can be returned to: their files and inputs are still there."""
    return kept((one.number, one.asked) for one in found if one.is_complete)


def find(tx: Connection, which: str) -> Snapshot:
    """A snapshot by its number, by its name, or the latest that is complete."""
    found = snapshots.all_snapshots(tx)
    if which == LATEST:
        chosen = [one for one in found if one.is_complete]
    elif which.isdecimal():
        chosen = [one for one in found if one.number == int(which)]
    else:
        named = [one for one in found if one.name == which]
        chosen = [one for one in named if one.status != ABORTED] or named
    if not chosen:
        known = ", ".join(one.name or str(one.number) for one in found) or "none"
        what = "no snapshot is complete" if which == LATEST else f"there is no snapshot {which}"
        raise LedgerError(what, operation="snapshot", hint=f"These are known: {known}.")
    return chosen[-1]


def ask_for(work_dir: Path, name: str | None) -> int:
    """Want a snapshot of a flow that runs now; its number."""
    with writing(work_dir) as tx:
        _refuse_in_vain(tx)
        _refuse_taken(tx, name)
        number = snapshots.ask(tx, name)
        record_event(tx, "snapshot asked for", f"snapshot {number}{f', {name}' if name else ''}")
        return number


def withdraw(work_dir: Path, number: int) -> bool:
    """Want a snapshot no longer; whether it had not begun."""
    table = schema.snapshots
    with writing(work_dir) as tx:
        mine = (table.c.number == number, table.c.status == ASKED)
        return bool(tx.execute(sa.delete(table).where(*mine)).rowcount)


def delete(work_dir: Path, which: str) -> Snapshot:
    """Forget a snapshot; what was kept only for it may go."""
    with writing(work_dir) as tx:
        one = find(tx, which)
        newest = snapshots.last_complete(tx, sorted(snapshots.region(tx)))
        if one.status == PREPARING:
            raise LedgerError(
                f"snapshot {one.number} is on its way",
                operation="snapshot delete",
                hint="Wait until it is over.",
            )
        if newest is not None and one.number == newest.number:
            raise LedgerError(
                f"snapshot {one.number} is the newest that is complete: a failure would return to it",
                operation="snapshot delete",
                hint="Have a newer one made first: `holdfast snapshot create` while the flow runs.",
            )
        snapshots.delete(tx, one.number)
        record_event(tx, "snapshot deleted", f"snapshot {one.number}, which was {one.status}")
        return one


def _refuse_in_vain(tx: Connection) -> None:
    if running(tx) is None:
        raise LedgerError(
            "the flow is not running, and only a running flow is captured",
            operation="snapshot create",
            hint="Start it with `holdfast run`. What it did before it stopped is in its newest snapshot already, if "
            "it was stopped while idle: see `holdfast snapshot list`.",
        )
    if not snapshots.region(tx):
        raise LedgerError(
            "no stage of this flow recovers by snapshots, so there is nothing to capture",
            operation="snapshot create",
            hint="Give stages .recover(hf.snapshot(...)), or the flow recover=hf.snapshot(...); docs/SNAPSHOTS.md says "
            "what that means for its sinks.",
        )


def _refuse_taken(tx: Connection, name: str | None) -> None:
    if name is None:
        return
    found = snapshots.all_snapshots(tx)
    keep = kept_numbers(found)
    in_use = [one for one in found if one.number in keep or one.status not in (DONE, ABORTED)]
    for one in in_use:
        if one.name == name:
            raise LedgerError(
                f"snapshot {one.number} has the name {name!r} already",
                operation="snapshot create",
                hint=f"Choose another name, or `holdfast snapshot delete {name}` first.",
            )
