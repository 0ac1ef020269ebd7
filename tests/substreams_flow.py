"""A flow with substreams that is killed: batches as labels, keys that leave at their end, a second stage behind them.

Run as `python substreams_flow.py HOME TRACKER`; it reads HOME/in and stops when it is idle.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

import holdfast as hf

SCHEMA = "id long, batch string, k long, v long, is_last boolean"
FILES_PER_BATCH = 2
ROWS_PER_FILE = 60


def build(home: Path, tracker: str) -> hf.Flow:
    flow = hf.Flow("batches", tracker=tracker)
    rows = flow.source("in", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    labelled = rows.substream(by="batch", closed_when="is_last").named("labels")
    labelled.to(hf.parquet(str(home / "all"))).late_to(hf.parquet(str(home / "late")))
    totals = labelled.group_by("substream", "k", emit="end").agg(n=hf.count(), s=hf.sum("v")).named("totals")
    totals.to(hf.parquet(str(home / "totals")))
    totals.transform(lambda df: df.where("s > 100")).named("large").to(hf.parquet(str(home / "large")))
    return flow


def table(number: int) -> pa.Table:
    """The rows of one file: of its batch, and three of the batch before, which was closed by then."""
    own = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    batch, part = divmod(number, FILES_PER_BATCH)
    of = [batch - 1 if batch and i < own.start + 3 else batch for i in own]
    last = [part == FILES_PER_BATCH - 1 and i == own.stop - 1 for i in own]
    return pa.table(
        {
            "id": pa.array(own, pa.int64()),
            "batch": pa.array([f"batch {b}" for b in of]),
            "k": pa.array([i % 7 for i in own], pa.int64()),
            "v": pa.array([i % 31 for i in own], pa.int64()),
            "is_last": pa.array(last),
        }
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2]).run(
        Path(sys.argv[1]) / "work",
        until_idle=True,
        master="local[1]",
        conf={"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1"},
    )
