"""`holdfast verify FLOW`: crash a flow at every step, and say what its sinks show of it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from holdfast.flow.planner import plan
from holdfast.interfaces.cli.shared import FlowName, console
from holdfast.runtime.loader import load, ship_module_by_value

if TYPE_CHECKING:
    from holdfast.verify.campaign import Wanted
    from holdfast.verify.outcome import Campaign, Progress


def verify(
    flow: FlowName,
    policies: Annotated[
        str,
        typer.Option(help="Recovery policies, by commas: names, `as-written`, or `all`.", show_default=True),
    ] = "as-written",
    faults: Annotated[
        str, typer.Option(help="Faults, by commas: names, or `all`.", show_default=True)
    ] = "kill,worker",
    points: Annotated[str, typer.Option(help="Only these crash points, by commas.")] = "",
    epochs: Annotated[
        int, typer.Option(help="Items of every source that are read, at most.", min=2, show_default=True)
    ] = 6,
    rows: Annotated[
        int, typer.Option(help="Rows of an item of generated sources, at most.", min=1, show_default=True)
    ] = 5_000,
    pairs: Annotated[
        int, typer.Option(help="Also so many runs with two deaths, for each policy.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Decides which occurrence of a point and which file.")] = 1,
    tasks: Annotated[int, typer.Option(help="Tasks that share a stage's state.", min=1)] = 2,
    standbys: Annotated[
        int,
        typer.Option(
            help="Play workers that die under a supervisor, with so many standbys each, as `holdfast run` does.",
            min=0,
        ),
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(help="With --standbys: spread the stages over so many workers.", min=1)
    ] = None,
    restart: Annotated[
        str | None, typer.Option(help="For the fault `target`: a command that restarts the sinks' servers.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write all that was found as JSON; `-` is stdout, and nothing else is printed.",
        ),
    ] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a page to read.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit's XML, for CI.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the directories of all runs in here.")] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="FLOW is a plain Structured Streaming job, with start() and read()."),
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(help="With --spark: the folder of input files.", exists=True, file_okay=False),
    ] = None,
) -> None:
    """Crash a flow in every way that is asked for, and compare its sinks with a run in peace.

    The flow's sources are read where they are; its sinks are moved to a temporary directory, so nothing that it writes
    to in earnest is touched. Sinks with `hf.foreach` are called for real, from a directory of their own, and compared
    if they have `read=`.

    Exit status: 0 all as predicted, 1 a violation, 2 nothing could be verified.

    Examples:

    - `holdfast verify orders.py`

    - `holdfast verify orders.py --policies all --faults kill --html report.html`

    - `holdfast verify orders.py --faults zombie --points commit.before`

    - `holdfast verify orders.py --policies all --standbys 1 --faults kill,zombie,standby,supervisor`

    - `holdfast verify orders.py --json - | jq .summary`
    """
    from holdfast.verify import html, junit, report, text
    from holdfast.verify.campaign import Wanted

    kept = keep.resolve() if keep else None
    if spark and standbys:
        raise typer.BadParameter("a plain Spark job has no supervisor", param_hint="--standbys")
    if workers and not standbys:
        raise typer.BadParameter("one process runs all stages without --standbys", param_hint="--workers")
    wanted = Wanted(
        flow,
        _policies(policies, standbys),
        _faults(faults, standbys),
        tuple(_names(points)),
        epochs,
        rows,
        seed,
        tasks,
        pairs,
        restart=restart,
        keep=kept,
        standbys=standbys,
        workers=workers,
    )
    campaign = _of_a_job(wanted, source) if spark else _of_a_flow(wanted)
    for write, path in ((report.write, json_file), (html.write, html_file), (junit.write, junit_file)):
        if path is not None:
            write(campaign, path)
    if json_file != report.STDOUT:
        text.show(campaign, console())
    raise typer.Exit(campaign.exit_status)


def _of_a_flow(wanted: Wanted) -> Campaign:
    from holdfast.verify.campaign import verify as verified

    loaded = load(wanted.flow)
    ship_module_by_value(loaded)
    with _bar() as told:
        return verified(plan(loaded), wanted, told)


def _of_a_job(wanted: Wanted, source: Path | None) -> Campaign:
    from holdfast.verify.plain.campaign import Job, verify_job

    if source is None:
        raise typer.BadParameter("a plain Spark job needs a folder of input files", param_hint="--source")
    root = wanted.keep or Path(tempfile.mkdtemp(prefix="holdfast-verify-"))
    try:
        with _bar() as told:
            return verify_job(Job(Path(wanted.flow), source.resolve()), root, wanted.points, told)
    finally:
        if wanted.keep is None:
            shutil.rmtree(root, ignore_errors=True)


def _policies(given: str, standbys: int) -> tuple[str, ...]:
    from holdfast.verify.variants import POLICIES, WITH_STANDBYS

    known = WITH_STANDBYS if standbys else POLICIES
    return tuple(known) if given == "all" else tuple(_names(given))


def _faults(given: str, standbys: int) -> tuple[str, ...]:
    from holdfast.verify.scenario import FAULTS, ONLY_SUPERVISED

    known = FAULTS if standbys else [fault for fault in FAULTS if fault not in ONLY_SUPERVISED]
    return tuple(known) if given == "all" else tuple(_names(given))


def _names(given: str) -> Iterator[str]:
    yield from (name.strip() for name in given.split(",") if name.strip())


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left. It is drawn when something is told: a thread of its own would be torn by forks.

    Elsewhere than on a terminal, a line per run.
    """
    if not sys.stderr.isatty():
        lines = _Lines()
        try:
            yield lines.told
        finally:
            lines.runs()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)

        def told(progress: Progress) -> None:
            total = progress.total or None
            bar.update(task, description=progress.doing, completed=progress.done, total=total, refresh=True)

        yield told


class _Lines:
    """Tells a campaign as lines for a log: what is being done, and each run with what came of it."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._doing = ""
        self._shown = 0

    def told(self, progress: Progress) -> None:
        """Say what is new."""
        self._progress = progress
        self.runs()
        if progress.doing != self._doing:
            self._doing = progress.doing
            print(self._doing, file=sys.stderr, flush=True)

    def runs(self) -> None:
        """Say how the runs went that have ended since."""
        from holdfast.verify.values import counted

        outcomes = self._progress.outcomes if self._progress else []
        for outcome in outcomes[self._shown :]:
            self._shown += 1
            of = f"{self._shown}/{self._progress.total}" if self._progress else ""
            what = f"{outcome.policy}, {outcome.title}: {outcome.shown}"
            if outcome.failovers is not None:
                what += f", {counted(outcome.failovers, 'fail-over')}"
            print(f"{of} {what}, {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
