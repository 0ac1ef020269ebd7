"""The flow that runs on a cluster: a running aggregate behind code of its own, and windows behind that."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

import holdfast as hf

LARGE, SMALL, KEYS = 120_000, 5_000, 20
START_US = 1_774_738_800_000_000
HOUR_US = 3_600_000_000


def table(number: int, rows: int) -> pa.Table:
    """The rows of one input file: an hour of event time, few keys, some of them null."""
    each = np.arange(rows)
    keys = (each * 7919 + number) % KEYS
    return pa.table(
        {
            "k": pa.array(keys, mask=keys == 0),
            "v": pa.array(each % 1009 - 500, mask=each % 13 == 0),
            "ts": pa.array(START_US + number * HOUR_US + each * HOUR_US // rows).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def build(home: Path) -> hf.Flow:
    flow = hf.Flow("on-a-cluster")
    schema = "k long, v long, ts timestamp"
    rows = flow.source("rows", hf.files(str(home / "in"), schema=schema, max_files_per_epoch=1))
    kept = rows.transform(lambda df: df.where("v is null or v % 10 != 0"))
    totals = kept.group_by("k").agg(n=hf.count(), total=hf.sum("v"), hi=hf.max("v")).named("totals")
    totals.to(hf.table(f"sqlite:///{home / 'out.db'}", "totals", key=["k"]))
    hourly = kept.group_by("k").window("ts", tumbling="1 hour", late="0 seconds").agg(n=hf.count())
    hourly.named("hourly").to(hf.parquet(str(home / "hourly")))
    return flow


if "CLUSTER_HOME" in os.environ:
    flow = build(Path(os.environ["CLUSTER_HOME"]))
