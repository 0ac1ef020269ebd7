"""`holdfast epochs STAGE`: what every epoch of a stage read, gave, kept and cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from holdfast.core.json import Json
from holdfast.core.size import size
from holdfast.interfaces.cli.progress import aside
from holdfast.interfaces.cli.shared import (
    AsJson,
    StageName,
    WorkDir,
    console,
    print_json,
    table,
    work_directory,
)
from holdfast.ledger.history import epochs_of


def epochs(
    stage: StageName,
    work_dir: WorkDir = None,
    last: Annotated[int, typer.Option(min=1, metavar="N", help="How many, counted from the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show a stage's newest epochs, from the ledger alone. Works while the flow runs.

    Examples:

    - `holdfast epochs totals`

    - `holdfast epochs totals --work-dir work/orders --last 100 --json`
    """
    found = epochs_of(work_directory(work_dir), stage, last)
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(_table(found["epochs"]))
    out.print(f"flow {found['flow']}, stage {stage}: newest epoch {found['head']}")


def _table(found: list[Json]) -> Table:
    shown = table(
        ("epoch",),
        ("rows in", "rows out", "keys", "state rows", "seconds", "operator s", "layer", "attempts"),
        ("watermark", "digest", "inputs", "aside"),
    )
    for epoch in found:
        shown.add_row(
            str(epoch["epoch"]),
            f"{epoch['rows_in']:,}",
            _ports(epoch["rows_out"]),
            f"{epoch['keys']:,}",
            f"{epoch['state_rows']:,}",
            f"{epoch['seconds']:.2f}",
            f"{epoch['operator_seconds']:.3f}",
            size(epoch["layer_bytes"]),
            "" if epoch["attempts"] is None else str(epoch["attempts"]),
            epoch["watermark"] or "",
            epoch["digest"],
            " ".join(_inputs(epoch)),
            aside({**epoch["aside"], **_given_up(epoch)}),
        )
    return shown


def _inputs(epoch: Json) -> list[str]:
    """Ranges of inputs, and versions of tables."""
    ranges = [f"{name}[{start}:{stop}]" for name, (start, stop) in epoch["inputs"].items()]
    return ranges + [f"table:{name}@{version}" for name, version in epoch["tables"].items()]


def _given_up(epoch: Json) -> dict[str, int]:
    """What a stage with `gap()` gave up when its worker was lost."""
    return {"skipped": epoch["rows_skipped"], "rows_of_state_lost": epoch["state_rows_lost"]}


def _ports(rows: Json) -> str:
    """Rows by port; the usual one needs no name."""
    others = [f"{port} {count:,}" for port, count in rows.items() if port != "out"]
    return ", ".join([f"{rows.get('out', 0):,}", *others])
