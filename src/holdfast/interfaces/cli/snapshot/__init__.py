"""`holdfast snapshot ...`: have a region captured, look at what was, and return to it."""

from __future__ import annotations

import typer

from holdfast.interfaces.cli.snapshot import create, delete, listing, restore, show

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Capture the stages that recover by hf.snapshot(...) as one, and return to what was captured.

    Examples:

    - `holdfast snapshot create --name before-upgrade`

    - `holdfast snapshot list`

    - `holdfast snapshot restore before-upgrade --dry-run`
    """,
)
app.command("create")(create.create)
app.command("list")(listing.list_)
app.command("show")(show.show)
app.command("restore")(restore.restore)
app.command("delete")(delete.delete)
