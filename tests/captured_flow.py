"""A flow of four stages that snapshots capture as one; `together` reads two of them, and its state depends on the order.

Run as `python captured_flow.py HOME MODE EVERY`; it reads HOME/in-a and HOME/in-b and stops when it is idle.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

import holdfast as hf

SCHEMA = "k long, v long, side string"
ROWS_PER_FILE = 60
STAGES = ("left", "right", "together", "totals")


def build(
    home: Path,
    mode: str = "aligned",
    every: str = "300 ms",
    slow: bool = False,
    out: str = "",
    **settings: object,
) -> hf.Flow:
    """Two sources, a stage behind each, one that takes both and counts what it has seen, one that adds up; `out` names other targets."""
    guarantee = "at_least_once" if mode == "at_least_once" else "exactly_once"
    policy = hf.snapshot(every, mode, **settings)  # type: ignore[arg-type]
    flow = hf.Flow("captured", guarantee=guarantee, recover=policy)
    sides = [
        flow.source(name, hf.files(str(home / f"in-{name}"), schema=SCHEMA, max_files_per_epoch=1))
        .group_by("k", "side")
        .agg(v=hf.sum("v"), n=hf.count())
        .named(stage)
        for name, stage in (("a", "left"), ("b", "right"))
    ]
    together = (
        sides[0]
        .union(sides[1])
        .stateful(
            seen_slowly if slow else seen,
            by=["k"],
            state="times long, newest long",
            output="k long, times long, newest long",
        )
        .named("together")
    )
    together.to(hf.parquet(str(home / f"together{out}")))
    together.group_by("k").agg(times=hf.max("times")).named("totals").to(
        hf.table(f"sqlite:///{home / f'out{out}.db'}", "totals", key="k")
    )
    return flow


def seen(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """How often a key was told of, and the largest sum so far: told twice, it counts twice."""
    told = rows.group_by("k").aggregate([("v", "count"), ("v", "max")])
    known = state.select(["k", "times", "newest"])
    both = pa.concat_tables([told.rename_columns(known.column_names), known])
    out = (
        both.group_by("k").aggregate([("times", "sum"), ("newest", "max")]).rename_columns(known.column_names)
    )
    return out, out


def seen_slowly(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """The same, so slowly that its inputs run ahead."""
    time.sleep(1.5)
    return seen(rows, state, context)


def table(side: str, number: int) -> pa.Table:
    """The rows of one input file."""
    places = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    return pa.table(
        {
            "k": pa.array([None if i % 31 == 0 else (i * 7919) % 17 for i in places], pa.int64()),
            "v": pa.array([i % 101 + 1 for i in places], pa.int64()),
            "side": pa.array([side for _ in places]),
        }
    )


if __name__ == "__main__":
    place, how, often = Path(sys.argv[1]), *sys.argv[2:]
    build(place, how, often).run(
        place / "work",
        until_idle=True,
        master="local[2]",
        conf={"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1"},
    )
