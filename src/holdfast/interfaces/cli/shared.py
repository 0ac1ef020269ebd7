"""What several commands have in common: which work directory is meant, completion of stages, and the console."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.core.errors import HoldfastError
from holdfast.core.json import Json
from holdfast.ledger.location import is_work_directory

# Wide enough that a line is never cut: a narrow terminal wraps it, and loses nothing.
_COLUMNS = 100_000


def complete_stage(ctx: typer.Context, incomplete: str) -> list[str]:
    """The stages of the work directory that the command line names so far, or would find by itself."""
    from holdfast.ledger.status import stage_names

    try:
        names = stage_names(work_directory(ctx.params.get("work_dir")))
    except (HoldfastError, typer.BadParameter):
        # A shell asks while somebody types: there is nobody to tell.
        return []
    return [name for name in names if name.startswith(incomplete)]


FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="path.py, path.py:name or module:name")]
StageName = Annotated[
    str, typer.Argument(metavar="STAGE", help="The stage's name.", autocompletion=complete_stage)
]
FlowWorkDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="HOLDFAST_WORK_DIR",
        file_okay=False,
        help="Where the flow keeps its state. [default: work/NAME, by the flow's name]",
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="HOLDFAST_WORK_DIR",
        file_okay=False,
        help="The flow's work directory. [default: ./work or the only one below it]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def work_directory(given: Path | str | None) -> Path:
    """The work directory that is meant: where `holdfast run` puts it, unless told."""
    if given is not None:
        return Path(given)
    home = Path("work")
    found = [path for path in sorted([home, *home.glob("*")]) if is_work_directory(path)]
    if len(found) == 1:
        return found[0]
    what = (
        f"{len(found)} flows have run here: {', '.join(map(str, found))}" if found else "no flow has run here"
    )
    raise typer.BadParameter(f"{what}. Name one with --work-dir.", param_hint="--work-dir")


def console(*, live: bool = False) -> Console:
    """Stdout as it is: nothing that users wrote is taken for markup. What is drawn live must fit the terminal."""
    width = None if live and sys.stdout.isatty() else _COLUMNS
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_json(body: Json) -> None:
    """One document on stdout."""
    print(json.dumps(body, indent=2, ensure_ascii=False))


def table(left: Sequence[str], right: Sequence[str] = (), rest: Sequence[str] = ()) -> Table:
    """A table without lines: text to the left, then numbers to the right of their columns, then text again."""
    made = Table(box=None, pad_edge=False)
    for title in (*left, *right, *rest):
        made.add_column(title, justify="right" if title in right else "left", no_wrap=True)
    return made


def failover_line(one: Json) -> str:
    """A primary that was replaced, as the ledger remembers it."""
    return f"{one['at']} failover: {one['group']}: {one['reason']}"
