"""A sink that comes later starts where its stage stands; a target that was emptied is still found out."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import read_sink, write_files
from holdfast.flow.policies import Policy


def flow(home: Path, *targets: str, policy: Policy | None = None) -> hf.Flow:
    made = hf.Flow("late-comers", recover=policy or hf.no_sync())
    rows = made.source("in", hf.files(str(home / "in"), schema="k long", max_files_per_epoch=1))
    totals = rows.group_by("k").agg(n=hf.count()).named("totals")
    for target in targets:
        totals.to(hf.parquet(str(home / target)))
    return made


def run(spark: SparkSession, home: Path, file: int, *targets: str, policy: Policy | None = None) -> None:
    write_files(home / "in", [pa.table({"k": [1, 2]})], first=file)
    flow(home, *targets, policy=policy).run(home / "work", until_idle=True, spark=spark, tasks=1)


def counts(home: Path, target: str) -> list[int]:
    return sorted(set(read_sink(home / target)["n"].to_pylist()))


@pytest.mark.parametrize("policy", [hf.no_sync(), hf.snapshot("1 hour")], ids=lambda policy: policy.name)
def test_a_second_sink_is_given_what_comes_after_it_was_added(
    spark: SparkSession, tmp_path: Path, policy: Policy
) -> None:
    run(spark, tmp_path, 0, "first", policy=policy)
    run(spark, tmp_path, 1, "first", "second", policy=policy)
    run(spark, tmp_path, 2, "first", "second", policy=policy)
    assert counts(tmp_path, "first") == [1, 2, 3]
    assert counts(tmp_path, "second") == [2, 3]
    for place in ("second", ".second.holdfast"):
        shutil.rmtree(tmp_path / place)
    with pytest.raises(hf.SinkError, match="the target is behind the ledger"):
        run(spark, tmp_path, 3, "first", "second", policy=policy)


def test_a_second_sink_that_has_had_nothing_yet_may_be_given_another_target(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, 0, "first")
    flow(tmp_path, "first", "second").run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    run(spark, tmp_path, 1, "first", "third")
    assert counts(tmp_path, "third") == [2]


def test_a_sink_that_is_added_above_the_last_snapshot_does_not_stand_in_the_way_of_a_return(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Epochs that no snapshot covers are there when the sink is added, and are undone by the loss of the worker."""

    class Lost(Exception):
        pass

    def lose(progress) -> None:  # type: ignore[no-untyped-def]
        if progress.stage("totals").epoch >= 1:
            raise Lost

    policy = hf.snapshot("1 hour")
    run(spark, tmp_path, 0, "first", policy=policy)
    write_files(tmp_path / "in", [pa.table({"k": [1, 2]})], first=1)
    with pytest.raises(Lost):
        flow(tmp_path, "first", policy=policy).run(tmp_path / "work", spark=spark, tasks=1, observe=lose)
    with pytest.raises(Lost):
        flow(tmp_path, "first", "second", policy=policy).run(
            tmp_path / "work", spark=spark, tasks=1, observe=lose
        )
    _orphan(tmp_path)
    run(spark, tmp_path, 2, "first", "second", policy=policy)
    assert counts(tmp_path, "first") == [1, 2, 3]
    assert counts(tmp_path, "second") == [2, 3]


def _orphan(home: Path) -> None:
    """As a worker that is killed leaves its stages."""
    with closing(sqlite3.connect(home / "work" / "ledger.db")) as ledger, ledger:
        ledger.execute("update stages set orphaned = 1")
