"""`holdfast state STAGE`: the rows of a stage's state, as the flow's author knows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from holdfast.core.moment import moment
from holdfast.interfaces.cli import values
from holdfast.interfaces.cli.shared import (
    AsJson,
    StageName,
    WorkDir,
    console,
    print_json,
    table,
    work_directory,
)

# The state's code takes as long to import as all the rest, and no other command needs it.
if TYPE_CHECKING:
    from holdfast.runtime.snapshot import Snapshot

    # What reads rows out of a snapshot: so many, of these columns.
    Reader = Callable[[Snapshot, Sequence[str], int | None], Iterator[pa.Table]]

ROWS_SHOWN = 100


def state(
    stage: StageName,
    work_dir: WorkDir = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only rows that this Spark SQL predicate holds for. Takes seconds."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"At most so many rows. [default: {ROWS_SHOWN}; all with --output]"
        ),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="As of this epoch. [default: the newest]")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these columns, in this order.")
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.parquet", help="Write the rows to a new Parquet file instead."),
    ] = None,
) -> None:
    """Show the rows of a stage's state: keys by name, aggregates as values, open windows with their ends.

    Reads the files of the newest committed epoch; works while the flow runs and while it does not. Rows come in no
    order that means anything. An older epoch can be read until its layers have been merged into later ones.

    Without `--where` no Spark is started. With it, Spark starts on this machine, which takes some seconds, and reads
    the whole state once.

    Examples:

    - `holdfast state totals --limit 5`

    - `holdfast state totals --where "user = 'ann' and total > 100" --json`

    - `holdfast state totals --epoch 41 --columns user,total --output totals.parquet`
    """
    if output is not None and (as_json or output.exists()):
        raise typer.BadParameter(
            "goes without --json." if as_json else f"{output} exists already.", param_hint="--output"
        )
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    root = work_directory(work_dir)
    if where is None:
        _answer(root, stage, epoch, wanted, limit, as_json, output, _plain)
        return
    # What is wrong with the question is told before Spark takes its time to start.
    from holdfast.runtime.snapshot import snapshot_of

    _names(snapshot_of(root, stage, epoch), wanted)
    from holdfast.runtime import state_query

    with state_query.session("local[*]") as spark:

        def filtered(snapshot: Snapshot, names: Sequence[str], most: int | None) -> Iterator[pa.Table]:
            return state_query.where(spark, snapshot, where, names, most)

        _answer(root, stage, epoch, wanted, limit, as_json, output, filtered)


def _plain(snapshot: Snapshot, names: Sequence[str], most: int | None) -> Iterator[pa.Table]:
    return snapshot.only(names).rows(most)


def _answer(
    root: Path,
    stage: str,
    epoch: int | None,
    wanted: Sequence[str] | None,
    limit: int | None,
    as_json: bool,
    output: Path | None,
    reader: Reader,
) -> None:
    from holdfast.runtime.snapshot import look

    if output is not None:
        snapshot, written = look(
            root, stage, epoch, lambda found: _write(output, found, wanted, limit, reader)
        )
        console().print(f"{written:,} rows of stage {stage} at epoch {snapshot.epoch} are in {output}")
        return
    most = limit or ROWS_SHOWN
    # One row more than is shown tells whether there are more.
    snapshot, rows = look(root, stage, epoch, lambda found: _read(found, wanted, most + 1, reader))
    _show(snapshot, rows.slice(0, most), more=rows.num_rows > most, as_json=as_json)


def _read(snapshot: Snapshot, wanted: Sequence[str] | None, most: int, reader: Reader) -> pa.Table:
    names = _names(snapshot, wanted)
    empty = snapshot.view.only(names).schema.empty_table()
    return pa.concat_tables(chain([empty], reader(snapshot, names, most)))


def _write(
    output: Path, snapshot: Snapshot, wanted: Sequence[str] | None, most: int | None, reader: Reader
) -> int:
    """Write beside the target, then rename: nobody sees half a file."""
    names, part = _names(snapshot, wanted), output.with_name(f".{output.name}.part")
    written = 0
    try:
        with pq.ParquetWriter(part, snapshot.view.only(names).schema) as writer:
            for rows in reader(snapshot, names, most):
                writer.write_table(rows)
                written += rows.num_rows
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)
    return written


def _names(snapshot: Snapshot, wanted: Sequence[str] | None) -> list[str]:
    known = snapshot.view.schema.names
    unknown = [name for name in wanted or () if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"there is no column {unknown[0]!r}; the columns are {', '.join(known)}.", param_hint="--columns"
        )
    return list(wanted or known)


def _show(snapshot: Snapshot, rows: pa.Table, *, more: bool, as_json: bool) -> None:
    types = {column.name: column.type for column in snapshot.view.columns}
    reached = moment(snapshot.watermark_us)
    if as_json:
        print_json(
            {
                "flow": snapshot.flow,
                "stage": snapshot.stage,
                "epoch": snapshot.epoch,
                "watermark": reached,
                "columns": [{"name": name, "type": types[name]} for name in rows.column_names],
                "rows": values.as_json(rows),
                "more": more,
            }
        )
        return
    out = console()
    shown = table(rows.column_names)
    for cells in values.as_text(rows):
        shown.add_row(*cells)
    out.print(shown)
    count = f"the first {rows.num_rows:,} rows; --limit N shows more" if more else f"{rows.num_rows:,} rows"
    at = f"epoch {snapshot.epoch}" if snapshot.epoch >= 0 else "no epoch yet"
    out.print(
        f"flow {snapshot.flow}, stage {snapshot.stage}, {at}{f', watermark {reached}' if reached else ''}: {count}"
    )
