"""`holdfast run FLOW`: run a flow in this process, with live progress."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.interfaces.cli.progress import ProgressView, aside
from holdfast.runtime.flow import Flow
from holdfast.runtime.loader import load


def run(
    flow: Annotated[str, typer.Argument(help="path.py[:name] or module:name")],
    work_dir: Annotated[
        Path | None, typer.Option(help="Where the flow keeps its state. [default: work/NAME]")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option(help="Stop when all that the sources hold has gone through.")
    ] = False,
    drain: Annotated[
        bool, typer.Option(help="Take the input to have ended: close all windows, then stop.")
    ] = False,
    master: Annotated[
        str, typer.Option(help="The Spark master, or sc://... for Spark Connect.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(help="A Spark setting, key=value; may be repeated.")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Tasks that share a stage's state. [default: one a core]")
    ] = None,
    take_over: Annotated[bool, typer.Option(help="Depose the process that runs the flow now.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until no other process runs the flow.")] = False,
) -> None:
    """Run a flow until it is idle, or until Ctrl-C or SIGTERM.

    Examples: holdfast run flows/orders.py --until-idle; holdfast run flows.orders:flow --work-dir /data/orders
    """
    description = load(flow)
    if not isinstance(description, Flow):
        raise typer.BadParameter(f"{flow} does not name a hf.Flow")
    settings = dict(_setting(text) for text in conf or [])
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    with ProgressView(console) as view:
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
            console.print("Stopped. Run the same command again to go on from the last committed epoch.")
            return
    for name, stage in report.stages.items():
        console.print(
            f"{name}: {stage.epochs} epochs, {stage.rows:,} rows, {stage.rows_per_second:,.0f} rows/s, now at"
            f" epoch {stage.epoch}, {stage.state_rows:,} keys{aside(stage.aside)}"
        )
    console.print(f"Idle after {report.seconds:.1f} s.")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"--conf {text} is not key=value")
    return key, value
