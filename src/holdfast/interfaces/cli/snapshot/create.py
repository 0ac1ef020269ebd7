"""`holdfast snapshot create`: have a running flow captured, and wait until it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.core.size import size
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, work_directory
from holdfast.interfaces.cli.snapshot import words
from holdfast.ledger import asked_snapshots, holder
from holdfast.ledger.ledger import reading
from holdfast.ledger.snapshot_report import facts_of, one_of
from holdfast.ledger.snapshots import Snapshot, region
from holdfast.protocols.snapshots import ABORTED, ASKED

Tell = Callable[[str], None]


def create(
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call it; no two that are kept share a name.")
    ] = None,
    timeout: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long to wait until it is complete.")
    ] = 60,
    work_dir: WorkDir = None,
    as_json: AsJson = False,
) -> None:
    """Have a running flow captured, and wait until it is. It stays, with all that it needs, until it is deleted.

    Examples:

    - `holdfast snapshot create`

    - `holdfast snapshot create --name before-upgrade --timeout 300 --json`
    """
    root = work_directory(work_dir)
    number = asked_snapshots.ask_for(root, _checked(name))
    try:
        _wait(root, number, timeout, _silent if as_json else console().print)
    except BaseException:
        # Also an impatient Ctrl-C: a wish that nobody waits for any more is not left behind.
        asked_snapshots.withdraw(root, number)
        raise
    found = facts_of(root, number)
    if as_json:
        print_json(found)
        return
    console().print(
        f"{words.title(number, name)} is complete after {words.took(found['seconds'])}: "
        f"{words.epochs(found['epochs'])}; {size(found['bytes'])} since the one before. "
        f"It stays until `holdfast snapshot delete {name or number}`."
    )


def _checked(name: str | None) -> str | None:
    if name is not None and (not name.strip() or name.isdecimal() or name == asked_snapshots.LATEST):
        raise typer.BadParameter(
            f"{name!r} cannot be told from a number or from `latest`.", param_hint="--name"
        )
    return name


def _wait(root: Path, number: int, timeout: int, tell: Tell) -> None:
    deadline, told = time.monotonic() + timeout, set[str]()
    tell(f"snapshot {number} is asked for")
    while True:
        one = one_of(root, number)
        if one is None:
            raise LedgerError(f"snapshot {number} was deleted", operation="snapshot create")
        for stage in sorted(one.parts.keys() - told):
            told.add(stage)
            tell(f"snapshot {number}: stage {stage} has added its part, up to epoch {one.parts[stage].epoch}")
        if one.is_complete:
            return
        _refuse_lost(root, one)
        if time.monotonic() >= deadline:
            raise _too_late(root, one, timeout)
        time.sleep(limits.POLL_MS / 1000)


def _refuse_lost(root: Path, one: Snapshot) -> None:
    if one.status == ABORTED:
        raise LedgerError(
            f"snapshot {one.number} was aborted: {one.reason}",
            operation="snapshot create",
            hint="Ask again; the flow goes on, and none of what it did is lost.",
        )
    with reading(root) as tx:
        # In one view: a flow that runs until it is idle completes the snapshot first, and then stops.
        is_over = holder.running(tx) is None and not asked_snapshots.find(tx, str(one.number)).is_complete
    if is_over:
        raise LedgerError(
            f"the flow stopped before snapshot {one.number} was complete",
            operation="snapshot create",
            hint="Start it again with `holdfast run`, and ask again.",
        )


def _too_late(root: Path, one: Snapshot, timeout: int) -> LedgerError:
    with reading(root) as tx:
        missing = sorted(region(tx) - one.parts.keys())
    if one.status == ASKED:
        why, hint = (
            "it has not begun",
            "Another one may be under way, or min_pause= not over: ask again later.",
        )
    else:
        why = f"it waits for {', '.join(missing)}" if missing else "its files are being carried"
        hint = f"It goes on: `holdfast snapshot show {one.number}` says how far it is. Wait longer with --timeout."
    return LedgerError(
        f"snapshot {one.number} is not complete after {timeout} s: {why}",
        operation="snapshot create",
        heals=one.status != ASKED,
        hint=hint,
    )


def _silent(line: str) -> None:
    """Nothing but JSON on stdout."""
