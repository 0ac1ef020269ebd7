"""A flow that waits for input leaves its ledger alone: counted in transactions, over so many turns of the worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import write_files
from holdfast.runtime.worker import Worker

# A turn is 50 ms. Before loops heard of changes, a hundred turns of this flow made 279 transactions with 1,012 statements.
TURNS = 100
QUIET_TURNS = 40


def test_an_idle_flow_asks_its_ledger_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "in", [pa.table({"k": [1, 2], "v": [3, 4]})])
    flow = hf.Flow("idle")
    rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema="k long, v long"))
    totals = rows.group_by("k").agg(total=hf.sum("v")).named("totals")
    totals.to(hf.parquet(str(tmp_path / "out")))
    counts: Counter[str] = Counter()
    turn = Worker._still_a_member

    def counted(worker: Worker) -> bool:
        """One turn; those from when all is out and quiet are counted."""
        if worker._rt.progress.sinks:
            counts["turns"] += 1
        if counts["turns"] == QUIET_TURNS:
            counts["at work"] = counts["transactions"]
            counts["transactions"] = counts["statements"] = 0
        if counts["turns"] == QUIET_TURNS + TURNS:
            counts["made"], counts["asked"] = counts["transactions"], counts["statements"]
            worker._told.set()
        return turn(worker)

    def begun(_: sa.Connection) -> None:
        counts["transactions"] += 1

    def asked(*_: object) -> None:
        counts["statements"] += 1

    monkeypatch.setattr(Worker, "_still_a_member", counted)
    sa.event.listen(sa.Engine, "begin", begun)
    sa.event.listen(sa.Engine, "before_cursor_execute", asked)
    try:
        flow.run(tmp_path / "work", spark=spark)
    finally:
        sa.event.remove(sa.Engine, "begin", begun)
        sa.event.remove(sa.Engine, "before_cursor_execute", asked)
    print(f"{counts['made']} transactions, {counts['asked']} statements in {TURNS} turns")
    assert counts["at work"] > 0  # they are counted at all
    assert counts["made"] <= TURNS / 5
