"""The flow that the tests of this folder kill: two stateful stages, a stateless one, three sinks.

Run as `python flow_under_fire.py HOME [--take-over]`; it reads HOME/in and stops when it is idle.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

import holdfast as hf

ROWS_PER_FILE = 500
SCHEMA = "k long, v long, x double, s string"


def build(home: Path) -> hf.Flow:
    flow = hf.Flow("under-fire")
    rows = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    kept = rows.transform(lambda df: df.where("v % 10 != 0"))
    totals = (
        kept.group_by("k", "s")
        .agg(total=hf.sum("v"), n=hf.count(), hi=hf.max("x"), mean=hf.avg("x"))
        .named("totals")
        .to(hf.parquet(str(home / "totals")))
    )
    totals.group_by("n").agg(keys=hf.count(), most=hf.max("total")).named("by_count").to(
        hf.parquet(str(home / "by_count"))
    )
    kept.transform(lambda df: df.where("k < 20").select("k", "v")).named("few").to(
        hf.parquet(str(home / "few"))
    )
    return flow


def table(number: int) -> pa.Table:
    """The rows of one input file: a function of its number, so that a batch can be computed at any time."""
    ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    return pa.table(
        {
            "k": pa.array([None if i % 97 == 0 else (i * 7919) % 200 for i in ids], pa.int64()),
            "v": pa.array([i % 1009 for i in ids], pa.int64()),
            "x": pa.array([None if i % 13 == 0 else (i % 37) / 4 for i in ids], pa.float64()),
            "s": pa.array([None if i % 11 == 0 else "ab"[i % 2] for i in ids]),
        }
    )


if __name__ == "__main__":
    report = build(Path(sys.argv[1])).run(
        Path(sys.argv[1]) / "work",
        until_idle=True,
        master="local[2]",
        take_over="--take-over" in sys.argv,
        conf={"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1"},
    )
    print(f"idle at epoch {report.stages['totals'].epoch if 'totals' in report.stages else None}")
