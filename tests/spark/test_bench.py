"""The benchmarks run and name their figures; what they measure is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.bench import (
    checksums,
    dedup,
    growth,
    join,
    policies,
    recovery,
    snapshots,
    state,
    tracker,
    windows,
)


def test_growth_writes_its_figures(spark: SparkSession, tmp_path: Path) -> None:
    growth.run(tmp_path / "growth.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "growth.json").read_text())
    assert set(found["figures"]) == set(growth.BARS)
    assert [len(run["samples"]) for run in found["runs"]] == [4, 4]


def test_checksums_are_measured_against_none(spark: SparkSession, tmp_path: Path) -> None:
    report = checksums.run(tmp_path / "checksums.json", directory=tmp_path / "data", quick=True, spark=spark)
    assert {figure.name for figure in report.figures} == {
        "state_200k_over_unchecked",
        "growth_1000_over_unchecked",
    }
    assert {line.side for line in report.lines} == {"checked", "unchecked"}


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


def test_policies_are_compared_with_gap(spark: SparkSession, tmp_path: Path) -> None:
    policies.run(
        tmp_path / "policies.json", directory=tmp_path / "data", quick=True, cases=["no_sync"], spark=spark
    )
    found = json.loads((tmp_path / "policies.json").read_text())
    assert set(found["figures"]) >= {*policies.BARS, "gap_p99_s"}
    [pair] = found["runs"]
    assert [len(pair[side]["seconds"]) for side in ("own", "gap")] == [2, 2]
    assert found["figures"]["gap_cpu_s_per_m_rows"] > 0
    assert found["figures"]["gap_written_mb_per_m_rows"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_policy_with_a_standby_is_measured_as_a_command(spark: SparkSession, tmp_path: Path) -> None:
    policies.run(
        tmp_path / "policies.json", directory=tmp_path, quick=True, cases=["active_standby"], spark=spark
    )
    found = json.loads((tmp_path / "policies.json").read_text())
    assert found["figures"]["active_standby_over_gap"] > 0
    [run] = found["runs"]
    assert min(len(run[side]["seconds"]) for side in ("own", "gap")) >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_recovery_kills_a_primary_and_times_its_successor(tmp_path: Path) -> None:
    recovery.run(tmp_path / "recovery.json", directory=tmp_path / "data", quick=True, sides=["no_sync_warm"])
    found = json.loads((tmp_path / "recovery.json").read_text())
    [kill] = found["runs"]
    assert kill["policy"] == "no_sync(members=2)"
    assert 0 < kill["detection_s"] < kill["first_epoch_s"] < kill["gap_s"]
    assert found["figures"]["warm_first_epoch_s"] == kill["first_epoch_s"]
    assert list((tmp_path / "data").iterdir()) == [], "the scratch directory should be gone"


@pytest.mark.slow
def test_snapshots_are_compared_by_mode_with_epochs_queued_and_as_the_state_grows(
    spark: SparkSession, tmp_path: Path
) -> None:
    snapshots.run(tmp_path / "snapshots.json", directory=tmp_path / "data", quick=True, spark=spark)
    found = json.loads((tmp_path / "snapshots.json").read_text())
    assert set(found["figures"]) >= {*snapshots.BARS, "stall_p99_over_median_no_sync"}
    queues = {run["mode"]: run for run in found["runs"] if run["measured"] == "queue"}
    assert queues["aligned"]["in_flight"] == 0 < queues["unaligned"]["in_flight"]
    assert len([run for run in found["runs"] if run["measured"] == "state"]) == 8


def test_tracker_counts_what_real_flows_write(spark: SparkSession, tmp_path: Path) -> None:
    tracker.run(tmp_path / "tracker.json", quick=True, spark=spark)
    found = json.loads((tmp_path / "tracker.json").read_text())
    flows = {run["tracker"]: run for run in found["runs"] if run["measured"] == "flow"}
    assert {run["substreams"] for run in flows.values()} == {4}
    # Punctuations are a label's first row, its end at three nodes, and that it was read; reports come with every epoch.
    assert flows["punctuation"]["changes"] == 4 * 4 < flows["xor"]["changes"]
