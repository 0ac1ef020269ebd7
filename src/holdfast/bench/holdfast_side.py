"""Holdfast's own side of the benchmarks, with everything a user would pay: state, segments, commit, merges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench.data import scratch
from holdfast.flow.aggregates import count, sum
from holdfast.flow.endpoints import discard, files
from holdfast.runtime.flow import Flow
from holdfast.runtime.progress import StageProgress

TASKS = 2


def holdfast_side(spark: SparkSession, inputs: Sequence[Path], schema: str) -> list[float]:
    """Feed the files one an epoch to a running sum and count by `k` from an empty state; discard the output.

    Returns the seconds from one commit to the next, in the order of the files, so that nothing that delays
    an epoch (merging, shipping, sweeping) is left out.
    """
    with scratch(inputs) as work_dir:
        done = running_aggregate(spark, inputs[0].parent, work_dir, schema)
    return commit_to_commit(done)


def running_aggregate(spark: SparkSession, inputs: Path, work_dir: Path, schema: str) -> StageProgress:
    """Run the flow over all files of a directory, one an epoch, and say how it went."""
    flow = Flow("bench")
    rows = flow.source("rows", files(str(inputs), schema=schema, max_files_per_epoch=1))
    rows.group_by("k").agg(s=sum("v"), n=count()).named("totals").to(discard())
    report = flow.run(work_dir, until_idle=True, spark=spark, tasks=TASKS)
    return report.stages["totals"]


def commit_to_commit(done: StageProgress) -> list[float]:
    """The seconds of every epoch; the first has no commit before it and counts from its plan."""
    commits = [sample.committed_s for sample in done.samples]
    return [done.samples[0].seconds, *(later - earlier for earlier, later in pairwise(commits))]
