"""What an epoch and a merge cost, counted in rows, bytes and runs, never in seconds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, write_files
from holdfast.core import limits
from holdfast.ledger.status import status
from holdfast.runtime import merger
from holdfast.runtime.progress import StageProgress

TOUCHED = 200


def run(
    spark: SparkSession, home: Path, keys: int, epochs: int, tasks: int = 2
) -> tuple[StageProgress, pa.Table]:
    """Fill a state with keys, then touch a few of them in each epoch."""
    filling = [pa.table({"k": list(range(keys))})]
    touching = [
        pa.table({"k": [(e * 7 + i * (keys // TOUCHED)) % keys for i in range(TOUCHED)]})
        for e in range(epochs)
    ]
    source = home / "in"
    write_files(source, [*filling, *touching])
    flow = hf.Flow("costs")
    rows = flow.source("rows", hf.files(str(source), schema="k long", max_files_per_epoch=1))
    rows.group_by("k").agg(n=hf.count()).named("counts").to(hf.parquet(str(home / "out")))
    report = flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks)
    return report.stages["counts"], pa.concat_tables([*filling, *touching])


def test_bytes_written_follow_the_keys_touched_not_the_state(spark: SparkSession, tmp_path: Path) -> None:
    small, _ = run(spark, tmp_path / "small", keys=1_000, epochs=3)
    large, _ = run(spark, tmp_path / "large", keys=100_000, epochs=3)
    assert large.state_rows == 100 * small.state_rows == 100_000
    for one, other in zip(small.samples[1:], large.samples[1:], strict=True):
        assert other.layer_bytes == pytest.approx(one.layer_bytes, rel=0.10)


def test_a_merge_step_rewrites_a_bounded_number_of_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUN_ROWS_MAX", 300)
    steps: list[int] = []
    real = merger.run_merge_step

    def counting(session: SparkSession, step: merger.MergeStep, tag: str) -> list[dict[str, object]]:
        runs = real(session, step, tag)
        steps.append(len(runs))
        return runs

    monkeypatch.setattr(merger, "run_merge_step", counting)
    done, rows = run(spark, tmp_path, keys=1_000, epochs=25)
    assert done.merges
    assert max(steps) <= limits.MERGE_STEP_RUNS_MAX
    assert sum(merge.steps for merge in done.merges) <= len(steps)
    assert any(merge.steps >= 3 for merge in done.merges)
    expected = batch(spark, spark.createDataFrame(rows), ["k"], {"n": "count(1)"})
    assert_same_rows(last_per_key(spark, tmp_path / "out", ["k"]), expected)


def test_the_spine_stays_shallow_and_merges_cheap(spark: SparkSession, tmp_path: Path) -> None:
    done, _ = run(spark, tmp_path, keys=1_000, epochs=30)
    layers = sum(sample.layer_bytes for sample in done.samples[1:])
    assert sum(merge.bytes for merge in done.merges) <= 6 * layers
    assert status(tmp_path / "work")["stages"]["counts"]["layers"] <= 2 * limits.MERGE_FANOUT


def test_the_number_of_tasks_may_change_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": [i % 300 for i in range(3_000)], "v": list(range(3_000))})

    def flow() -> hf.Flow:
        made = hf.Flow("rescaled")
        rows = made.source(
            "rows", hf.files(str(tmp_path / "in"), schema="k long, v long", max_files_per_epoch=1)
        )
        rows.group_by("k").agg(s=hf.sum("v"), n=hf.count()).to(hf.parquet(str(tmp_path / "out")))
        return made

    for number, tasks in enumerate([1, 4, 3, 7, 2]):
        write_files(tmp_path / "in", [table.slice(number * 600, 600)], first=number)
        flow().run(tmp_path / "work", until_idle=True, spark=spark, tasks=tasks)
    expected = batch(spark, spark.createDataFrame(table), ["k"], {"s": "sum(v)", "n": "count(1)"})
    assert_same_rows(last_per_key(spark, tmp_path / "out", ["k"]), expected)


def test_a_stage_waits_for_a_consumer_that_is_far_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound of one row, no more than one epoch is ever unread; all of it goes through in the end."""
    monkeypatch.setattr(limits, "UNREAD_ROWS_MAX", 1)
    flow = hf.Flow("pressed")
    rows = flow.source("rows", hf.rows(pa.table({"k": list(range(60))}), per_epoch=10))
    first = rows.group_by("k").agg(n=hf.count()).named("first")
    first.as_rows().group_by("n").agg(keys=hf.count()).named("second").to(hf.discard())
    report = flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert [sample.rows for sample in report.stages["second"].samples] == [10] * 6


def test_a_flow_that_survives_only_its_process_ships_nothing(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("light", survives="process")
    rows = flow.source("rows", hf.rows(pa.table({"k": list(range(60))}), per_epoch=10))
    rows.group_by("k").agg(n=hf.count()).named("counts").to(hf.discard())
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert status(tmp_path / "work")["stages"]["counts"]["safe"] == {"memory": 5}
