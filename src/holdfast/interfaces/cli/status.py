"""`holdfast status`: what the ledger says about a flow."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.core.json import Json
from holdfast.interfaces.cli.progress import aside
from holdfast.ledger.status import status as read_status


def status(
    work_dir: Annotated[Path, typer.Option(help="The flow's work directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where every stage, cursor and sink of a flow stands. Works while nothing runs.

    Example: holdfast status --work-dir work/orders --json
    """
    found = read_status(work_dir)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    holder = found["holder"]
    state = f"run by process {holder['pid']} on {holder['host']}" if found["running"] else "not running"
    console.print(f"flow {found['flow']}, generation {found['generation']}, {state}")
    console.print(_stages(found["stages"]))
    console.print(_cursors(found["cursors"]))
    for name, stage in found["stages"].items():
        if stage["aside"]:
            console.print(f"{name}: {aside(stage['aside']).lstrip(', ')}")
    for name, source in found["sources"].items():
        _refused(console, name, source["refused"])
    for event in found["events"]:
        console.print(f"{event['kind']}: {event['stage'] or ''} {event['reason']}", soft_wrap=True)


def _refused(console: Console, source: str, refused: Json) -> None:
    if refused["items"]:
        console.print(f"source {source}: {refused['items']:,} files set aside", soft_wrap=True)
    for name, reason in refused["newest"].items():
        console.print(f"  {name}: {reason}", soft_wrap=True, markup=False)


def _stages(stages: Json) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in (
        "stage",
        "epoch",
        "on disk",
        "keys",
        "state bytes",
        "layers",
        "kept epochs",
        "kept rows",
        "watermark",
    ):
        table.add_column(title, justify="left" if title == "stage" else "right")
    for name, stage in stages.items():
        numbers = (
            stage["epoch"],
            stage["safe"].get("disk", -1),
            stage["state_rows"],
            stage["state_bytes"],
            stage["layers"],
            stage["channel"]["epochs"],
            stage["channel"]["rows"],
        )
        table.add_row(name, *(f"{number:,}" for number in numbers), _moment(stage["watermark_us"]))
    return table


def _moment(micros: int | None) -> str:
    if micros is None:
        return ""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).strftime("%F %T")
    except OverflowError:
        return f"{micros:,} us"


def _cursors(cursors: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("consumer", "input", "processed", "needed"):
        table.add_column(title)
    for cursor in cursors:
        table.add_row(cursor["consumer"], cursor["input"], str(cursor["processed"]), str(cursor["needed"]))
    return table
