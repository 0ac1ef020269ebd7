"""Delta tables as a target: Holdfast's sink, and the same commits without claim and record.

Spark's own writer for Delta is not among the sides: there is none for this version of Spark.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench.data import DataSet, scratch
from holdfast.bench.edges_contract import FLOW, Edge, Where, timed
from holdfast.bench.edges_data import ARROW, segments_of
from holdfast.bench.report import Figure, ratio
from holdfast.bench.rounds import Rounds
from holdfast.flow.lake import DeltaSink
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.lake import Rows, lake_sink
from holdfast.storage import atomic

NAME = "delta"


def edge(where: Where) -> Edge:
    """The sink and its sides."""
    return Edge(NAME, {"holdfast": _holdfast, "plain": _plain}, _figures, {})


def _figures(rounds: Rounds) -> list[Figure]:
    return [ratio("delta_over_plain", rounds["holdfast"], rounds["plain"])]


def _holdfast(spark: SparkSession, made: DataSet) -> list[float]:
    with scratch(made.files) as home:
        sink = lake_sink(DeltaSink(str(home / "out")), ARROW)
        sink.open(FLOW, 0, 1)
        seconds: list[float] = []
        for number, epoch in enumerate(made.files):
            with timed(seconds):
                sink.publish(SinkRecord(FLOW, 0, number, 0, 1), segments_of(epoch))
        sink.close()
        return seconds


def _plain(spark: SparkSession, made: DataSet) -> list[float]:
    """One append an epoch, durable, and nothing that says which."""
    from deltalake import write_deltalake

    with scratch(made.files) as home:
        out = home / "out"
        seconds: list[float] = []
        known: set[Path] = set()
        for epoch in made.files:
            with timed(seconds):
                with Rows(segments_of(epoch), ARROW, ARROW.names).reader() as rows:
                    write_deltalake(str(out), rows, mode="append")
                found = {file for file in out.rglob("*") if file.is_file()}
                for file in found - known:
                    atomic.fsync_file(file)
                for directory in (out, out / "_delta_log"):
                    atomic.fsync_dir(directory)
            known = found
        return seconds
