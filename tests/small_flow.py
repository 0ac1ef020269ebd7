"""A flow for `verify`: a dedup, a running aggregate, a directory and a table, and little in each epoch."""

from __future__ import annotations

FLOW = """
import holdfast as hf

flow = hf.Flow("small")
events = flow.source(
    "events",
    hf.generate(
        "id string, user string, amount double, ts timestamp",
        rows=3_000, per_epoch=500, keys={"user": 40}, repeat=0.05, seed=3, disorder="2 seconds",
    ),
)
unique = events.dedup("id", time="ts", within="10 seconds").named("unique")
totals = unique.group_by("user").agg(n=hf.count(), total=hf.sum("amount")).named("totals")
totals.to(hf.parquet("totals")).to(hf.table("sqlite:///totals.db", "totals", key="user"))
"""
