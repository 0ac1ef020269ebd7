"""`holdfast run FLOW`: run a flow in this process, and show how far it is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from holdfast.interfaces.cli.progress import view_for
from holdfast.interfaces.cli.shared import FlowName, console
from holdfast.runtime.flow import Flow
from holdfast.runtime.loader import load


def run(
    flow: FlowName,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="HOLDFAST_WORK_DIR",
            file_okay=False,
            help="Where the flow keeps its state. [default: work/NAME]",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when all that the sources hold has gone through.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Take the input to have ended: close all windows, then stop.")
    ] = False,
    master: Annotated[
        str, typer.Option(help="The Spark master, or sc://... for Spark Connect.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tasks that share a stage's state. [default: one a core]"),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Depose the process that runs the flow now.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no other process runs the flow.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print progress as lines of JSON.")] = False,
) -> None:
    """Run a flow until it is idle, or until Ctrl-C or SIGTERM: both are clean stops, with status 0.

    Progress is one line a stage: epoch, rows, rows/s while epochs were under way, lag (rows that wait, in so many
    files or epochs), rows and bytes of state. Elsewhere than on a terminal, lines appear at most every two seconds.

    Examples:

    - `holdfast run orders.py --until-idle`

    - `holdfast run flows.orders:flow --work-dir data/orders --conf spark.driver.memory=4g`

    - `holdfast run orders.py --drain --json | jq -c 'select(.type == "finished")'`
    """
    description = load(flow)
    if not isinstance(description, Flow):
        raise typer.BadParameter(f"{flow} is a description without run(): make it with hf.Flow.")
    settings = dict(_setting(text) for text in conf or [])
    signal.signal(signal.SIGTERM, _interrupt)
    with view_for(console(live=True), quiet=quiet, as_json=as_json) as view:
        try:
            report = description.run(
                work_dir or Path("work") / description.name,
                until_idle=until_idle,
                drain=drain,
                master=master,
                conf=settings,
                tasks=tasks,
                take_over=take_over,
                wait=wait,
                observe=view.show,
            )
        except KeyboardInterrupt:
            view.stopped()
            return
        view.finished(report)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text} is not KEY=VALUE.", param_hint="--conf")
    return key, value
