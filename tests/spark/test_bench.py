"""The benchmarks run and name their figures; what they measure is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench import growth, state


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
