"""What both trackers really write: flows of two stages and a sink, counted in their manifests and in the ledger.

A stage's tasks are merged into one report before anything is written, so what is counted is per stage and epoch, and only
the messages that a report stands for, one a segment, label and reader, follow the tasks. The simulation has the other
model, in which every task talks for itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import SparkSession
from rich.box import SIMPLE_HEAD
from rich.table import Table

from holdfast.core.json import Json
from holdfast.flow.aggregates import count
from holdfast.flow.endpoints import discard
from holdfast.flow.generate import generate
from holdfast.flow.substreams import TRACKERS
from holdfast.ledger import schema
from holdfast.ledger.ledger import reading
from holdfast.protocols.substreams import wire_bytes
from holdfast.runtime.flow import Flow

# Four windows of ten seconds, each in several epochs.
ROWS, PER_EPOCH, EVERY = 4_000, 500, "10 seconds"


@dataclass(frozen=True)
class Written:
    """What one flow wrote about its substreams."""

    tracker: str
    tasks: int
    substreams: int
    epochs: int  # of both stages
    changes: int  # a label in a report
    report_bytes: int
    messages: int  # that the reports stand for
    sent_bytes: int  # of what manifests say was sent to whom
    ledger_bytes: int  # of the tracker's state when all has ended


def measured(spark: SparkSession, tasks: Iterable[int]) -> Iterator[Written]:
    """Both trackers with so many tasks a stage."""
    for number in tasks:
        for tracker in TRACKERS:
            with tempfile.TemporaryDirectory(prefix="tracker-") as home:
                _flow(tracker).run(Path(home) / "work", drain=True, spark=spark, tasks=number)
                yield written(Path(home) / "work", tracker, number)


def written(work: Path, tracker: str, tasks: int) -> Written:
    """Count what stands in a ledger."""
    with reading(work) as tx:
        bodies = list(tx.execute(sa.select(schema.manifests.c.body)).scalars())
        shards = list(tx.execute(sa.select(schema.substream_shards.c.body)).scalars())
        ended = schema.substreams.c.ended_ms.is_not(None)
        through = tx.execute(sa.select(sa.func.count()).where(ended)).scalar_one()
    told: list[Json] = [body["substreams"] for body in bodies if "substreams" in body]
    reports = [one["report"] for one in told if one["report"]["changes"]]
    sent = [number for one in told for tallies in one["sent"].values() for _, number in tallies.values()]
    return Written(
        tracker,
        tasks,
        through,
        len(told),
        sum(len(report["changes"]) for report in reports),
        sum(wire_bytes(report) for report in reports),
        sum(sent),
        sum(wire_bytes(one["sent"]) for one in told if one["sent"]),
        sum(wire_bytes(body) for body in shards),
    )


def table_of(found: Iterable[Written]) -> Table:
    """For one substream: what was written, by tasks and tracker."""
    table = Table(
        title="bench tracker: real flows, a substream", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    table.add_column("tracker")
    for name in ("tasks", "changes", "bytes of reports", "messages", "bytes of what was sent"):
        table.add_column(name, justify="right")
    for one in found:
        numbers = one.changes, one.report_bytes, one.messages, one.sent_bytes
        each = [f"{number / one.substreams:,.1f}" for number in numbers]
        table.add_row(one.tracker, str(one.tasks), *each)
    return table


def _flow(tracker: str) -> Flow:
    flow = Flow("bench", tracker=tracker)
    made = generate(
        "k long, ts timestamp", rows=ROWS, per_epoch=PER_EPOCH, keys={"k": 100}, spacing="10 milliseconds"
    )
    labelled = flow.source("rows", made).substream(time="ts", every=EVERY).named("labels")
    labelled.group_by("substream", "k", emit="end").agg(n=count()).named("totals").to(discard())
    return flow
