"""A flow that is edited between two runs: what is not the same stage any more is refused, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import read_sink, write_files
from holdfast.ledger.status import status

LEAST = 0


def positive(df: DataFrame) -> DataFrame:
    return df.where(f"v >= {LEAST}")


def flow(home: Path, *, dedup: bool = True, total: str = "v", name: str | None = "tot") -> hf.Flow:
    made = hf.Flow("rewired")
    rows = made.source("in", hf.files(str(home / "in"), schema="id long, v long, ts timestamp"))
    seen = rows.dedup("id", time="ts", within="1 day").named("u") if dedup else rows
    totals = seen.transform(positive).group_by("v").agg(n=hf.count(), s=hf.sum(total))
    (totals.named(name) if name else totals).to(hf.parquet(str(home / "out")))
    rows.transform(positive).named("raw").to(hf.discard())
    return made


def run(made: hf.Flow, spark: SparkSession, home: Path) -> None:
    made.run(home / "work", until_idle=True, spark=spark, tasks=1)


def files_below(home: Path) -> set[Path]:
    return {path for path in home.rglob("*") if path.is_file() and not path.name.startswith("ledger")}


def test_a_rewired_stage_is_refused_and_the_flow_goes_on_when_it_is_brought_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = pa.array([0], pa.timestamp("us", "UTC"))
    one = pa.table({"id": [7], "v": [1], "ts": moment})
    write_files(tmp_path / "in", [one, one])
    run(flow(tmp_path), spark, tmp_path)
    before = files_below(tmp_path)
    for edited, told in {
        flow(tmp_path, dedup=False): r"reads: channel:u\.out -> source:in.*holdfast reset",
        flow(tmp_path, total="v * 2"): r"aggregate s: sum\(v\) -> sum\(v \* 2\)",
        flow(tmp_path, name="others"): r"published to from stage 'tot'.*\.named\('tot'\)",
        flow(tmp_path, name=None): r"is new here.*\.named\('tot'\)",
    }.items():
        with pytest.raises(hf.StateSchemaError, match=told):
            run(edited, spark, tmp_path)
    assert files_below(tmp_path) == before
    write_files(tmp_path / "in", [one.set_column(0, "id", pa.array([8]))], first=2)
    monkeypatch.setitem(positive.__globals__, "LEAST", -1)
    run(flow(tmp_path), spark, tmp_path)
    assert max(read_sink(tmp_path / "out")["n"].to_pylist()) == 2
    events = [event for event in status(tmp_path / "work")["events"] if event["kind"] == "code changed"]
    assert sorted(event["stage"] for event in events) == ["raw", "tot"]
    assert {event["reason"] for event in events} == {
        "its code has changed (transform `positive`: global `LEAST`)"
    }
