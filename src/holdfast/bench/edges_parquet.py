"""Parquet files as a target: Holdfast's sink, the same without its record, and Spark's writer."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.bench.data import DataSet, scratch
from holdfast.bench.edges_contract import FLOW, Edge, Where, timed
from holdfast.bench.edges_data import ARROW, fresh
from holdfast.bench.report import Bar, Figure, ratio
from holdfast.bench.rounds import Rounds
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.reading import has_rows
from holdfast.storage import atomic

NAME = "parquet"


def edge(where: Where) -> Edge:
    """The sink and its sides."""
    sides = {"holdfast": _holdfast, "plain": _plain, "spark": _spark}
    return Edge(NAME, sides, _figures, {"parquet_vs_spark": Bar("at least", 1.0)})


def _figures(rounds: Rounds) -> list[Figure]:
    return [
        ratio("parquet_vs_spark", rounds["spark"], rounds["holdfast"]),
        ratio("parquet_over_plain", rounds["holdfast"], rounds["plain"]),
    ]


def _holdfast(spark: SparkSession, made: DataSet) -> list[float]:
    with scratch(made.files) as home:
        sink = ParquetSink(home / "out", schema=ARROW)
        sink.open(FLOW, 0, 1)
        seconds: list[float] = []
        for number, epoch in enumerate(made.files):
            with fresh(epoch, home) as segments, timed(seconds):
                sink.publish(SinkRecord(FLOW, 0, number, 0, 1), segments)
        sink.close()
        return seconds


def _plain(spark: SparkSession, made: DataSet) -> list[float]:
    """Links in a directory, durable, then renamed: what the sink does for rows, and nothing that says so."""
    with scratch(made.files) as home:
        seconds: list[float] = []
        out = home / "out"
        out.mkdir()
        for number, epoch in enumerate(made.files):
            with fresh(epoch, home) as segments, timed(seconds):
                staging = home / "staging"
                staging.mkdir()
                for part, segment in enumerate(filter(has_rows, segments)):
                    link = staging / f"part-{part:05d}.parquet"
                    atomic.link_or_copy(segment, link)
                    atomic.fsync_file(link)
                atomic.fsync_dir(staging)
                atomic.rename_without_replacing(staging, out / f"epoch={number:08d}")
                atomic.fsync_dir(out)
        return seconds


def _spark(spark: SparkSession, made: DataSet) -> list[float]:
    """Spark's own writer with its defaults; it makes nothing durable."""
    with scratch(made.files) as home:
        seconds: list[float] = []
        for number, epoch in enumerate(made.files):
            with timed(seconds):
                rows = spark.read.schema(made.schema).parquet(str(epoch))
                rows.write.parquet(str(home / "out" / f"epoch={number:08d}"))
        return seconds
