"""`holdfast substreams`: which substreams are open and what they wait for, and which have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.core.json import Json
from holdfast.interfaces.cli.shared import AsJson, WorkDir, console, print_json, table, work_directory
from holdfast.ledger.substream_list import substreams as listed


def substreams(
    work_dir: WorkDir = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    only_closed: Annotated[bool, typer.Option("--closed", help="Only those that have ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many, counted from the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show a flow's substreams, from the ledger alone: since when, and what the open ones wait for.

    Examples:

    - `holdfast substreams --open`

    - `holdfast substreams --work-dir work/orders --closed --limit 10 --json`
    """
    if only_open and only_closed:
        raise typer.BadParameter("say --open or --closed; both are shown without", param_hint="--open")
    which = "open" if only_open else "closed" if only_closed else None
    found = listed(work_directory(work_dir), which, limit)
    if as_json:
        print_json(found)
        return
    shown = table(("label", "state", "since", "ended", "labelled by", "waits for"))
    for one in found["substreams"]:
        shown.add_row(
            one["label"], one["state"], one["since"], one["ended"] or "", one["labelled_by"], _waits_for(one)
        )
    out = console()
    out.print(shown)
    out.print(f"flow {found['flow']}: {found['open']:,} open, {found['closed']:,} closed")


def _waits_for(one: Json) -> str:
    """In the words of the protocols.

    >>> _waits_for({"state": "open", "not_closed_by": ["hours"], "in_flight": 2, "held_by": []})
    'hours to close it, 2 messages in flight'
    """
    if one["state"] == "closed":
        return ""
    parts = [f"{', '.join(one['not_closed_by'])} to close it"] if one["not_closed_by"] else []
    parts += [f"{one['in_flight']:,} messages in flight"] if one["in_flight"] else []
    parts += [f"{', '.join(one['held_by'])} to end it"] if one["held_by"] else []
    return ", ".join(parts)
