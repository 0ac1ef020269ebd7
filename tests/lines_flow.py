"""A stream of JSON lines that workers of two groups share: `holdfast run lines_flow.py`; its home is in STREAMS_HOME."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

_home = Path(os.environ.get("STREAMS_HOME", "home"))
_in, _columns = str(_home / "in"), "n bigint, text string"

flow = hf.Flow("lines")
lines = flow.source(
    "lines",
    hf.read_stream(
        lambda spark: spark.readStream.schema(_columns).option("maxFilesPerTrigger", 1).json(_in),
        schema=_columns,
        trigger="500 ms",
    ),
)
copied = lines.transform(lambda df: df).named("copy").to(hf.parquet(str(_home / "out")))
lines.group_by("text").agg(n=hf.count()).named("totals").to(hf.parquet(str(_home / "totals")))
flow.place("counting", "totals")
