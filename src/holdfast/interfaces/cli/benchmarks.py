"""`holdfast bench ...`: side-by-side measurements, each in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Measure Holdfast beside its peers, in one run.

    Examples:

    - `holdfast bench state --quick`

    - `holdfast bench recovery --json recovery.json`
    """,
)

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the figures and all samples to this file.")
]
Quick = Annotated[bool, typer.Option(help="Tiny sizes: shows that it runs, measures nothing.")]


@app.command()
def state(json_path: JsonFile = None, quick: Quick = False) -> None:
    """A running aggregate over 1M keys, against Spark's state stores and the same job without state."""
    from holdfast.bench import state as bench

    bench.run(json_path, quick=quick)


@app.command()
def growth(json_path: JsonFile = None, quick: Quick = False) -> None:
    """What an epoch of 10k keys costs as the state grows from 100k to 10M keys."""
    from holdfast.bench import growth as bench

    bench.run(json_path, quick=quick)


@app.command()
def checksums(json_path: JsonFile = None, quick: Quick = False) -> None:
    """The flows of `state` and `growth` with checksums and without, in turns."""
    from holdfast.bench import checksums as bench

    bench.run(json_path, quick=quick)


@app.command()
def dedup(json_path: JsonFile = None, quick: Quick = False) -> None:
    """Duplicates dropped by id within an hour, against Spark's two ways to do so; bytes an id at 10M ids."""
    from holdfast.bench import dedup as bench

    bench.run(json_path, quick=quick)


@app.command()
def windows(json_path: JsonFile = None, quick: Quick = False) -> None:
    """Aggregates in tumbling and sliding windows over 100k keys, against Spark's."""
    from holdfast.bench import windows as bench

    bench.run(json_path, quick=quick)


@app.command()
def join(json_path: JsonFile = None, quick: Quick = False) -> None:
    """An interval join of two streams of 200k rows an epoch, against Spark's stream-stream join."""
    from holdfast.bench import join as bench

    bench.run(json_path, quick=quick)


@app.command()
def edges(
    json_path: JsonFile = None,
    quick: Quick = False,
    postgres: Annotated[
        str | None,
        typer.Option(
            envvar="HOLDFAST_TEST_POSTGRES", show_envvar=True, help="A database that tables can be made in."
        ),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            envvar="HOLDFAST_TEST_KAFKA", show_envvar=True, help="Servers that topics can be made on."
        ),
    ] = None,
    jdbc: Annotated[
        Path | None,
        typer.Option(
            envvar="HOLDFAST_JDBC_JAR",
            show_envvar=True,
            exists=True,
            dir_okay=False,
            help="PostgreSQL's driver for Java: `scripts/services jdbc` fetches it. Without it Spark's side is left out.",
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this target; may be given again.")] = None,
) -> None:
    """Every sink beside the plain Spark way to write the same rows: PostgreSQL, Parquet, Kafka, Delta."""
    from holdfast.bench import edges as bench
    from holdfast.bench.edges_contract import Where

    bench.run(json_path, where=Where(postgres, jdbc, kafka), only=only or (), quick=quick)


@app.command()
def policies(json_path: JsonFile = None, quick: Quick = False) -> None:
    """The same flow under every recovery policy: time, CPU and bytes relative to `gap()`."""
    from holdfast.bench import policies as bench

    bench.run(json_path, quick=quick)


@app.command()
def recovery(json_path: JsonFile = None, quick: Quick = False) -> None:
    """kill -9 at full load: how long until the next epoch is committed, under every policy and for Spark."""
    from holdfast.bench import recovery as bench

    bench.run(json_path, quick=quick)


@app.command()
def snapshots(json_path: JsonFile = None, quick: Quick = False) -> None:
    """What capturing a region costs, by mode, with epochs queued and with a state of up to 1 GB."""
    from holdfast.bench import snapshots as bench

    bench.run(json_path, quick=quick)


@app.command()
def tracker(
    json_path: JsonFile = None,
    svg_path: Annotated[
        Path | None, typer.Option("--svg", dir_okay=False, help="Draw messages and bytes into this file.")
    ] = None,
    quick: Quick = False,
) -> None:
    """Messages and bytes until the end of a substream is known: punctuations against the XOR tracker, to 1,000 nodes."""
    from holdfast.bench import tracker as bench

    bench.run(json_path, svg_path, quick=quick)


@app.command()
def picture(
    policies_json: Annotated[Path, typer.Argument(metavar="POLICIES.json", exists=True, dir_okay=False)],
    recovery_json: Annotated[Path, typer.Argument(metavar="RECOVERY.json", exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT.svg", dir_okay=False)],
) -> None:
    """Draw what `policies` and `recovery` wrote: overhead against recovery time, a point a policy."""
    from holdfast.bench import picture as bench

    bench.run(policies_json, recovery_json, out)
