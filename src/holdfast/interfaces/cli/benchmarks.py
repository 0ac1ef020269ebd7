"""`holdfast bench ...`: side-by-side measurements, each in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Measure Holdfast beside its peers, in one run.")

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
