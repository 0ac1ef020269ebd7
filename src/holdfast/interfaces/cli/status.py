"""`holdfast status`: what the ledger says about a flow."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.core.size import size
from holdfast.interfaces.cli.progress import aside, waiting
from holdfast.interfaces.cli.shared import (
    AsJson,
    WorkDir,
    console,
    failover_line,
    print_json,
    table,
    work_directory,
)
from holdfast.ledger.groups import FAILOVER
from holdfast.ledger.lag import Lag
from holdfast.ledger.status import ROUTINE
from holdfast.ledger.status import status as read_status
from holdfast.ledger.unread import Unread


def status(work_dir: WorkDir = None, as_json: AsJson = False) -> None:
    """Show where every stage, cursor and sink of a flow stands. Works while nothing runs, and while it does.

    Examples:

    - `holdfast status`

    - `holdfast status --work-dir work/orders --json`
    """
    found = read_status(work_directory(work_dir))
    if as_json:
        print_json(found)
        return
    out = console()
    holder = found["holder"]
    doing = f"run by process {holder['pid']} on {holder['host']}" if found["running"] else "not running"
    out.print(f"flow {found['flow']}, generation {found['generation']}, {doing}")
    out.print(_stages(found["stages"]))
    out.print(_cursors(found["cursors"]))
    for one in found["unread"]:
        out.print(str(Unread(**one)), soft_wrap=True, markup=False)
    for name, stage in found["stages"].items():
        if stage["aside"]:
            out.print(f"{name}: {aside(stage['aside'])}")
    for name, source in found["sources"].items():
        _refused(out, name, source["refused"])
        if source["lost_rows"]:
            out.print(
                f"source {name}: {source['lost_rows']:,} rows were deleted before they were read",
                soft_wrap=True,
            )
    for line in _snapshots(found["snapshots"]):
        out.print(line, soft_wrap=True)
    for one in found["failovers"]["newest"]:
        out.print(failover_line(one), soft_wrap=True, markup=False, highlight=False)
    for line in _events(found):
        out.print(line, soft_wrap=True)


def _events(found: Json) -> Iterator[str]:
    """What has happened, with times; routine only in numbers, fail-overs are listed before."""
    for event in found["events"]:
        if event["kind"] not in ROUTINE and event["kind"] != FAILOVER:
            stage, reason = event["stage"], event["reason"]
            about = f"{stage}: " if stage and stage not in reason else ""
            yield f"{moment(event['at_ms'] * 1000)} {event['kind']}: {about}{reason}"
    for kind, one in found["routine"].items():
        yield f"{one['last']} {kind}: {one['count']:,} times, this was the last"


def _snapshots(found: Json | None) -> Iterator[str]:
    if found is None:
        return
    last, failed = found["last"], found["failed_in_a_row"]
    if last is None:
        yield "snapshots: none is complete yet; nothing leaves the stages that are captured"
    else:
        undone = ", ".join(f"{stage} {count}" for stage, count in found["would_undo"].items())
        name = f" ({last['name']})" if last["name"] else ""
        yield (
            f"snapshots: {last['number']}{name} is the last complete, {found['age_seconds']:.0f} s old; "
            f"epochs that a failure would undo: {undone}"
        )
    if failed:
        yield f"snapshots: {failed} in a row failed; `holdfast snapshot list` and `show` say why"


def _refused(console: Console, source: str, refused: Json) -> None:
    if refused["items"]:
        console.print(f"source {source}: {refused['items']:,} files set aside", soft_wrap=True)
    for name, reason in refused["newest"].items():
        console.print(f"  {name}: {reason}", soft_wrap=True, markup=False, highlight=False)


def _stages(stages: Json) -> Table:
    shown = table(
        ("stage",),
        ("epoch", "on disk", "lag", "keys", "state", "layers", "kept epochs", "kept rows"),
        ("watermark",),
    )
    for name, stage in stages.items():
        shown.add_row(
            name,
            str(stage["epoch"]),
            str(stage["safe"].get("disk", -1)),
            waiting(Lag(**stage["lag"])),
            f"{stage['state_rows']:,}",
            size(stage["state_bytes"]),
            str(stage["layers"]),
            f"{stage['channel']['epochs']:,}",
            f"{stage['channel']['rows']:,}",
            stage["watermark"] or "",
        )
    return shown


def _cursors(cursors: list[Json]) -> Table:
    shown = table(("consumer", "input"), ("processed", "needed", "lag"))
    for cursor in cursors:
        shown.add_row(
            cursor["consumer"],
            cursor["input"],
            str(cursor["processed"]),
            str(cursor["needed"]),
            waiting(Lag(**cursor["lag"])),
        )
    return shown
