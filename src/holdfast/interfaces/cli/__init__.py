"""The `holdfast` command: one file a subcommand. docs/COMMANDS.md documents all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.core.version import __version__
from holdfast.interfaces.cli import (
    benchmarks,
    epochs,
    explain,
    failover,
    failure,
    reset,
    run,
    scrub,
    snapshot,
    state,
    status,
    substreams,
    verify,
    workers,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Keeps PySpark streams correct and alive through failures.",
    epilog="Exit status: 0 done, 1 an error that is explained, 2 a mistake in the command, 70 a fault of ours.",
)
app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("reset")(reset.reset)
app.command("status")(status.status)
app.command("workers")(workers.workers)
app.command("failover")(failover.failover)
app.command("epochs")(epochs.epochs)
app.command("state")(state.state)
app.command("substreams")(substreams.substreams)
app.command("scrub")(scrub.scrub)
app.command("verify")(verify.verify)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(benchmarks.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show whole tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps PySpark streams correct and alive through failures."""
    failure.show_tracebacks(debug)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; an error of ours is told with what, where and what to do, without a traceback."""
    words = list(sys.argv[1:] if words is None else words)
    as_json = "--json" in words
    # Typed behind the command it means the same: people add it to the end of what has just failed.
    words.sort(key=lambda word: word != "--debug")
    try:
        status_code = app(words, prog_name="holdfast", standalone_mode=not as_json)
    except Exception as error:
        sys.exit(failure.tell(error, as_json=as_json))
    sys.exit(status_code if isinstance(status_code, int) else 0)
