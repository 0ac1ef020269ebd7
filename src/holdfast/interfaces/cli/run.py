"""`holdfast run FLOW`: keep the workers of a flow running, and show how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.core import limits
from holdfast.core.duration import microseconds
from holdfast.interfaces.cli.progress import view_for
from holdfast.interfaces.cli.shared import FlowName, FlowWorkDir, console
from holdfast.interfaces.cli.spark_settings import settings_of
from holdfast.ledger.location import LEDGER_VARIABLE
from holdfast.runtime.supervisor import SupervisorOptions, planned, supervise
from holdfast.runtime.worker_spec import WorkerSpec


def run(
    flow: FlowName,
    work_dir: FlowWorkDir = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when all that the sources hold has gone through.")
    ] = False,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="As --until-idle, but take the input to have ended then: close all windows, and stop.",
        ),
    ] = False,
    master: Annotated[
        str, typer.Option(help="The Spark master, or sc://... for Spark Connect.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A Spark setting; may be repeated. Over Spark Connect, only settings of a session.",
        ),
    ] = None,
    conf_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Spark settings that nobody else may see, KEY VALUE or KEY=VALUE a line; the file's mode is 0600.",
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tasks that every epoch is spread over. [default: by its rows and the cores]",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Spread the stages over N processes. [default: as the flow says]"
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Take rows of sources in batches, one in so long at most. [default: as the flow says]",
        ),
    ] = None,
    lease: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long a worker may give no sign of life, in time in which it could have run, before it is replaced.",
        ),
    ] = "1 second",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Depose the process that runs the flow now.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no other process runs the flow.")] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=LEDGER_VARIABLE,
            help="Keep the ledger in PostgreSQL, postgresql://USER@HOST/DB. [default: where it is, or in the work directory]",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Have Spark's own warnings in the workers' logs, DIR/logs."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print progress as lines of JSON.")] = False,
) -> None:
    """Run a flow until Ctrl-C or SIGTERM, which are clean stops with status 0; with --until-idle, until all is read.

    This process only watches: the flow runs in worker processes, and one that dies is replaced. If this process dies
    itself, the workers go on; the same command finds them again.

    A worker that is replaced is told of at once, with the reason. What needs no Spark is checked before any is started;
    `holdfast explain --check` has Spark look at the columns and types of every stage without running anything.

    Progress is one line a stage: epoch, rows, rows/s while epochs were under way, lag (rows that wait, in so many
    files or epochs), rows and bytes of state. Elsewhere than on a terminal, lines appear at most every two seconds.

    Examples:

    - `holdfast run orders.py --until-idle`

    - `holdfast run flows.orders:flow --work-dir data/orders --conf spark.driver.memory=4g`

    - `holdfast run orders.py --drain --json | jq -c 'select(.type == "finished")'`
    """
    settings = {
        **({"spark.log.level": "WARN"} if verbose else {}),
        **settings_of(conf or [], conf_file),
    }
    plan = planned(flow, workers, work_dir)
    spec = WorkerSpec(
        flow=flow,
        work_dir=str(work_dir or Path("work") / plan["flow"]),
        worker="",
        group="",
        workers=workers,
        until_idle=until_idle,
        drain=drain,
        master=master,
        conf=settings,
        tasks=tasks,
        trigger_us=None if trigger is None else microseconds(trigger, "--trigger"),
        lease_ms=_lease_ms(lease),
    )
    with view_for(console(live=True), quiet=quiet, as_json=as_json) as view:
        report = supervise(plan, spec, SupervisorOptions(take_over, wait, view.show, ledger))
        if report is None:
            view.stopped()
        else:
            view.finished(report)


def _lease_ms(text: str) -> int:
    found_ms = microseconds(text, "lease") // 1000
    if found_ms < limits.LEASE_MS_MIN:
        raise typer.BadParameter(f"{text} is shorter than {limits.LEASE_MS_MIN} ms.", param_hint="--lease")
    return found_ms
