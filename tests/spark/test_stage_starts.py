"""A stage or sink that is added to a flow, or taken out and put back, starts with what is kept, and says what it missed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import read_sink, write_files
from holdfast.ledger.status import status


def flow(home: Path, *behind: str, read_from: str | None = None, sinks: int = 1) -> hf.Flow:
    """Rows go through a stage, and behind it are as many as are named."""
    made = hf.Flow("growing")
    rows = made.source("in", hf.files(str(home / "in"), schema="k long, v long", max_files_per_epoch=1))
    first = rows.group_by("k").agg(last=hf.last("v", by="v")).named("first").as_rows()
    for name in behind:
        stage = first.group_by("k").agg(n=hf.count()).named(name)
        if read_from and name == "new":
            stage.read_from(read_from)
        for number in range(sinks if name == "new" else 1):
            stage.to(hf.parquet(str(home / f"{name}-{number}")))
    return made


def run(spark: SparkSession, home: Path, made: hf.Flow, file: int, files: int = 1) -> None:
    tables = [pa.table({"k": [1, None], "v": [number, number]}) for number in range(file, file + files)]
    write_files(home / "in", tables, first=file)
    made.run(home / "work", until_idle=True, spark=spark, tasks=1)


def counted(home: Path, sink: str) -> dict[int | None, int]:
    """By key, the newest count."""
    return {row["k"]: row["n"] for row in read_sink(home / sink).sort_by("epoch").to_pylist()}


def told(home: Path) -> list[str]:
    return [event["reason"] for event in status(home / "work")["events"] if event["kind"] == "not seen"]


def test_a_stage_that_comes_later_starts_with_what_is_kept_and_one_that_comes_back_reads_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, flow(tmp_path, "old"), 0, files=3)
    run(spark, tmp_path, flow(tmp_path, "old", "new"), 3)
    assert counted(tmp_path, "old-0") == {1: 4, None: 4}
    assert counted(tmp_path, "new-0") == {1: 1, None: 1}
    (said,) = told(tmp_path)
    assert "epoch 3 of channel:first.out" in said
    assert "6 rows of epochs 0 to 2 it has not seen" in said
    run(spark, tmp_path, flow(tmp_path, "old"), 4, files=2)
    run(spark, tmp_path, flow(tmp_path, "old", "new"), 6)
    assert counted(tmp_path, "old-0") == {1: 7, None: 7}
    assert counted(tmp_path, "new-0") == {1: 2, None: 2}
    assert "4 rows of epochs 4 to 5 it has not seen" in told(tmp_path)[-1]


def test_a_stage_can_start_now_and_a_sink_that_comes_back_is_told_what_it_missed(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, flow(tmp_path, "old"), 0)
    run(spark, tmp_path, flow(tmp_path, "old", "new", read_from="now", sinks=2), 1)
    assert counted(tmp_path, "new-1") == {1: 1, None: 1}
    assert "as it was to start now; 2 rows of epochs 0 to 0" in told(tmp_path)[0]
    run(spark, tmp_path, flow(tmp_path, "old", "new", read_from="now"), 2)
    run(spark, tmp_path, flow(tmp_path, "old", "new", sinks=2), 3)
    assert counted(tmp_path, "new-0") == counted(tmp_path, "new-1") == {1: 3, None: 3}
    assert sorted(set(read_sink(tmp_path / "new-1")["n"].to_pylist())) == [1, 3]
    assert "2 rows of epochs 1 to 1 it has not seen" in told(tmp_path)[-1]


def test_only_a_known_place_to_start_is_taken() -> None:
    rows = hf.Flow("f").source("in", hf.files("in/", schema="k long"))
    with pytest.raises(hf.PlanError, match="cannot read from 'yesterday'"):
        rows.group_by("k").agg(n=hf.count()).read_from("yesterday")
