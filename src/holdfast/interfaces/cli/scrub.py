"""`holdfast scrub`: check all files of a work directory against their checksums."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.core.size import size
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, table, work_directory
from holdfast.storage.scrub import COPY, MIRROR, NOTHING, REPLAY, Scrubbed, mend
from holdfast.storage.scrub import scrub as look
from holdfast.storage.shipper import REPLICA, STANDBY

# What a reader is told of each file.
REMEDIES = {
    MIRROR: "the flow brings it back from a mirror",
    REPLAY: "the flow makes it again by replay",
    COPY: "--repair copies the whole one there",
    NOTHING: "cannot be made again: bring it back from a backup",
}


def scrub(
    work_dir: WorkDir = None,
    replica: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", file_okay=False, exists=True, help="The flow's replica, to check as well."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mark damaged files as lost, so that the flow makes them again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file of the flow against its checksums. Works while the flow runs, and writes nothing.

    The exit status is 1 if anything is wrong. The flow finds the same faults when it reads the files, and repairs
    them then; `--repair` has it do so at its next epoch, or when it is started again.

    Examples:

    - `holdfast scrub`

    - `holdfast scrub --work-dir work/orders --replica /mnt/backup/orders --repair`
    """
    root = work_directory(work_dir).resolve()
    mirrors = {STANDBY: root / STANDBY, **({REPLICA: replica} if replica else {})}
    with _progress() as progress:
        found = look(root, mirrors, progress)
    mended = mend(root, mirrors, found) if repair and found.findings else 0
    if as_json:
        body = {"files": found.files, "bytes": found.bytes, "unchecked": found.unchecked}
        findings = [finding.to_json() for finding in found.findings]
        print_json({**body, "ledger": found.ledger, "damaged": findings, "marked": mended})
    else:
        _show(found, mended, repair)
    if found.findings or found.ledger:
        raise typer.Exit(1)


def _show(found: Scrubbed, mended: int, repair: bool) -> None:
    out = console()
    if found.findings:
        shown = table(("tier", "stage", "epochs", "file", "what is wrong", "what becomes of it"))
        for one in found.findings:
            epochs = str(one.first) if one.first == one.last else f"{one.first} to {one.last}"
            shown.add_row(one.tier, one.stage, epochs, one.path, one.wrong, REMEDIES[one.repair])
        out.print(shown)
    if found.ledger:
        out.print(f"The ledger is damaged: {found.ledger}. Bring it back from a backup.")
    if found.unchecked:
        out.print(
            f"{found.unchecked:,} runs were written by an older Holdfast: they are checked here, but not when they are"
            " read. Merges write them anew."
        )
    out.print(
        f"{found.files:,} files of {size(found.bytes)} checked, {len(found.findings):,} of them damaged"
        + (f", {mended:,} marked or copied." if repair else ".")
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = TextColumn("checking"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
