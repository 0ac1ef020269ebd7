"""The benchmarks run and name their figures; what they measure is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench import dedup, growth, join, state, windows


def test_growth_writes_its_figures(spark: SparkSession, tmp_path: Path) -> None:
    growth.run(tmp_path / "growth.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "growth.json").read_text())
    assert set(found["figures"]) == set(growth.BARS)
    assert [len(run["samples"]) for run in found["runs"]] == [4, 4]


def test_state_compares_holdfast_with_the_job_without_state(spark: SparkSession, tmp_path: Path) -> None:
    state.run(
        tmp_path / "state.json",
        directory=tmp_path / "data",
        quick=True,
        spark=spark,
        rows=(200_000,),
        sides=("holdfast", "stateless"),
    )
    found = json.loads((tmp_path / "state.json").read_text())
    assert set(found["figures"]) == {"over_stateless_200k"}


def test_dedup_compares_holdfast_with_both_of_sparks_ways(spark: SparkSession, tmp_path: Path) -> None:
    dedup.run(tmp_path / "dedup.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "dedup.json").read_text())
    assert set(found["figures"]) >= set(dedup.BARS)
    assert all(len(run["seconds"]) == 2 for run in found["runs"] if "seconds" in run)


def test_windows_compare_holdfast_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    windows.run(tmp_path / "windows.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "windows.json").read_text())
    assert set(found["figures"]) >= set(windows.BARS)
    assert [len(run["seconds"]) for run in found["runs"]] == [2] * 6


def test_join_compares_holdfast_with_sparks_stream_stream_join(spark: SparkSession, tmp_path: Path) -> None:
    join.run(tmp_path / "join.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "join.json").read_text())
    assert set(found["figures"]) >= set(join.BARS)
    assert [len(run["seconds"]) for run in found["runs"]] == [2] * 3
