"""`holdfast reset FLOW`: start over, with nothing left of what the flow has done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.core.size import size
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.shared import AsJson, FlowName, FlowWorkDir, console, print_json
from holdfast.runtime.loader import load

if TYPE_CHECKING:
    from holdfast.runtime.reset import Found


def reset(
    flow: FlowName,
    work_dir: FlowWorkDir = None,
    targets: Annotated[
        bool, typer.Option("--targets", help="Remove what its sinks have published too, with their records.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed; nothing is changed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove all that a flow has left: its state, its ledger, its logs, and with --targets what it has published.

    Refused while a process runs the flow. If it is cut off, no run begins until the same command has finished it. Files
    that are not Holdfast's stay.

    Examples:

    - `holdfast reset orders.py --targets --dry-run`

    - `holdfast reset orders.py --work-dir data/orders --yes`
    """
    from holdfast.runtime.reset import Reset

    planned = plan(load(flow))
    wanted = Reset(planned, work_dir or Path("work") / planned.name, targets=targets)
    if not dry_run and not yes and sys.stdin.isatty():
        _ask(wanted.find())
    found = wanted.find() if dry_run else wanted.carry_out()
    if as_json:
        print_json({"flow": planned.name, "removed": not dry_run, **found.to_json()})
        return
    for line in lines(found, removed=not dry_run):
        console().print(line)


def _ask(found: Found) -> None:
    """On stderr: stdout may be read by a program."""
    for line in lines(found, removed=False):
        typer.echo(line, err=True)
    typer.confirm("Remove all of it?", abort=True, err=True)


def lines(found: Found, *, removed: bool) -> Iterator[str]:
    """What goes, a line each."""
    does = "Removed" if removed else "Would remove"
    if found.running and not removed:
        yield f"Process {found.running.pid} on {found.running.host} runs the flow: stop it first."
    for path, measured in found.directories:
        yield f"{does} {path}: {measured.files:,} files, {size(measured.bytes)}."
    if found.ledger is not None:
        yield f"{does} the ledger, {found.ledger}."
    for sink, left in found.targets:
        amount = (
            f"{left.rows:,} rows" if left.rows is not None else f"{left.files:,} files, {size(left.bytes)}"
        )
        upto = "" if left.epoch is None else f", published up to epoch {left.epoch}"
        stays = f" What stays: {left.stays}." if left.stays else ""
        yield f"{does} from {left.target} (sink {sink}): {amount}{upto}.{stays}"
    if not (found.directories or found.ledger or found.targets):
        yield "There is nothing to remove."
