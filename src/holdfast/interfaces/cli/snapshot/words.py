"""What the commands about snapshots have in common: which one is meant, and how it reads."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.core.errors import HoldfastError
from holdfast.core.json import Json
from holdfast.interfaces.cli.shared import work_directory
from holdfast.ledger.snapshot_report import listed


def complete_snapshot(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names and numbers of the snapshots in the work directory that is meant."""
    try:
        found = listed(work_directory(ctx.params.get("work_dir")))["snapshots"]
    except (HoldfastError, typer.BadParameter):
        # A shell asks while somebody types: there is nobody to tell.
        return []
    names = [str(one["name"] or one["number"]) for one in found]
    return [name for name in names if name.startswith(incomplete)]


Which = Annotated[
    str,
    typer.Argument(
        metavar="N|NAME",
        help="The snapshot's number or name, or `latest`.",
        autocompletion=complete_snapshot,
    ),
]


def title(number: int, name: str | None) -> str:
    """A snapshot as a sentence begins with it.

    >>> title(7, "before-upgrade")
    'snapshot 7 (before-upgrade)'
    """
    return f"snapshot {number}" + (f" ({name})" if name else "")


def epochs(found: Json) -> str:
    """By stage, the last epoch that a snapshot covers.

    >>> epochs({"left": 12, "right": -1})
    'left 12, right none'
    """
    return ", ".join(f"{stage} {epoch if epoch >= 0 else 'none'}" for stage, epoch in found.items())


def span(start: int, stop: int) -> str:
    """Positions from one up to but without another, by the first and the last.

    >>> span(3, 4), span(3, 6)
    ('3', '3 to 5')
    """
    return str(start) if stop - start == 1 else f"{start} to {stop - 1}"


def took(seconds: float | None) -> str:
    """How long, in a column."""
    return "" if seconds is None else f"{seconds:.1f} s"
