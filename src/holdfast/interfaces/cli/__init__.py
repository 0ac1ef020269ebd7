"""The `holdfast` command: one file a subcommand."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from holdfast.core.errors import HoldfastError
from holdfast.interfaces.cli import benchmarks, run, status

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Keeps PySpark streams correct and alive through failures.",
)
app.command("run")(run.run)
app.command("status")(status.status)
app.add_typer(benchmarks.app, name="bench")


def main() -> None:
    """Run the command line; errors of ours are told in one paragraph, without a traceback."""
    try:
        app()
    except HoldfastError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(str(error))
        sys.exit(1)
