"""The flow that the tests of this folder kill: dedup, read by a running aggregate and by windows; a stage without
state; six sinks, one of them for late rows, two of them tables.

Run as `python flow_under_fire.py HOME [--take-over] [--master MASTER]`; it reads HOME/in and stops when it is idle.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast.flow.policies import Policy

# What a process that runs the flow alone does about its own death, by stage; the others have the default.
ALONE = {"windows": hf.upstream_backup(), "few": hf.strong_production()}

ROWS_PER_FILE = 450
REPEATED = 50
SCHEMA = "id long, k long, v long, x double, s string, ts timestamp"
LATE_US = 60_000_000
WINDOW_US = 120_000_000

_MINUTE_US = 60_000_000
_START_US = 1_774_738_800_000_000


def build(home: Path, recover: dict[str, Policy] | None = None) -> hf.Flow:
    """The flow, with a recovery policy by stage where it is not to have the default one."""
    flow = hf.Flow("under-fire")
    policies = {name: hf.no_sync() for name in ("unique", "totals", "windows", "few")} | (recover or {})
    database = f"sqlite:///{home / 'out.db'}"
    rows = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    kept = rows.transform(lambda df: df.where("v % 10 != 0"))
    unique = (
        kept.dedup("id", time="ts", within="1 hour")
        .named("unique")
        .recover(policies["unique"])
        .late_to(hf.parquet(str(home / "late")))
    )
    unique.group_by("k", "s").agg(total=hf.sum("v"), n=hf.count(), hi=hf.max("x"), mean=hf.avg("x")).named(
        "totals"
    ).recover(policies["totals"]).to(hf.parquet(str(home / "totals"))).to(
        hf.table(database, "totals", key=["k", "s"])
    )
    windows = unique.group_by("s").window("ts", tumbling="2 minutes", late="1 minute")
    windows.agg(
        total=hf.sum("v"),
        n=hf.count(),
        newest=hf.top_k("v", 3, by="id"),
        listed=hf.collect_list("v", by="id"),
        middle=hf.percentile("v", 0.5),
    ).named("windows").recover(policies["windows"]).to(hf.parquet(str(home / "windows")))
    kept.transform(lambda df: df.where("k < 20").select("k", "v")).named("few").recover(policies["few"]).to(
        hf.parquet(str(home / "few"))
    ).to(hf.table(database, "few"))
    return flow


def table(number: int) -> pa.Table:
    """The rows of one input file: a function of its number, so that a batch can be computed at any time.

    A file is a minute of event time, out of order; it starts with rows of the file before. Some rows have no
    time, and of every file but the first some are a day late.
    """
    own = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    ids = [*own[:REPEATED], *own] if number == 0 else [*range(own.start - REPEATED, own.start), *own]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([None if i % 97 == 0 else (i * 7919) % 200 for i in ids], pa.int64()),
            "v": pa.array([i % 1009 for i in ids], pa.int64()),
            "x": pa.array([None if i % 13 == 0 else (i % 37) / 4 for i in ids], pa.float64()),
            "s": pa.array([None if i % 11 == 0 else "ab"[i % 2] for i in ids]),
            "ts": pa.array([_time_us(i) for i in ids], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )


def _time_us(i: int) -> int | None:
    file, place = divmod(i, ROWS_PER_FILE)
    if i % 53 == 0:
        return None
    day_us = 24 * 60 * _MINUTE_US if file and i % 101 == 0 else 0
    return _START_US + file * _MINUTE_US + (place * 7919) % 60 * 1_000_000 - day_us


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    report = build(given.home, ALONE).run(
        given.home / "work",
        until_idle=True,
        master=given.master,
        take_over=given.take_over,
        tasks=2,
        conf={"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1"},
    )
    print(f"idle at epoch {report.stages['totals'].epoch if 'totals' in report.stages else None}")
