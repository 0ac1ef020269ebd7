"""Holdfast's own side of the benchmarks, with everything a user would pay: state, segments, commit, merges."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench.data import DataSet, scratch
from holdfast.flow.aggregates import count, sum
from holdfast.flow.endpoints import discard, files
from holdfast.flow.flow import Stream
from holdfast.runtime.flow import Flow
from holdfast.runtime.progress import StageProgress

TASKS = 2

# What a flow does with the rows of its source: one named stage.
Build = Callable[[Stream], Stream]


def holdfast_side(spark: SparkSession, made: DataSet, *, build: Build, direct: bool = True) -> list[float]:
    """Feed the files one an epoch to a flow from an empty state; discard the output.

    Returns the seconds from one commit to the next, in the order of the files, so that nothing that delays
    an epoch (merging, shipping, sweeping) is left out. Without `direct`, rows take the way through Spark SQL
    that they take behind code of the user's.
    """
    with scratch(made.files) as work_dir:
        done = run_flow(spark, made.directory, work_dir, made.schema, build, direct)
    if done.aside.get("late"):
        raise RuntimeError(f"{done.aside['late']} rows were late: other sides would do other work")
    return commit_to_commit(done)


def running_aggregate(rows: Stream) -> Stream:
    """A running sum and count by `k`."""
    return rows.group_by("k").agg(s=sum("v"), n=count()).named("totals")


def run_flow(
    spark: SparkSession, inputs: Path, work_dir: Path, schema: str, build: Build, direct: bool = True
) -> StageProgress:
    """Run a flow of one stage over all files of a directory, one an epoch, and say how it went."""
    flow = Flow("bench")
    build(flow.source("rows", files(str(inputs), schema=schema, max_files_per_epoch=1))).to(discard())
    [done] = flow.run(work_dir, until_idle=True, spark=spark, tasks=TASKS, direct=direct).stages.values()
    return done


def commit_to_commit(done: StageProgress) -> list[float]:
    """The seconds of every epoch that read rows; the first has no commit before it and counts from its plan.

    An epoch that only closes windows is part of the time of the file after it; behind the last file, of none.
    """
    read = [sample for sample in done.samples if sample.rows]
    commits = [sample.committed_s for sample in read]
    return [read[0].seconds, *(later - earlier for earlier, later in pairwise(commits))]
