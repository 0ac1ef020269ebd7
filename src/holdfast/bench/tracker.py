"""`holdfast bench tracker`: what it takes to know that a substream has ended, by punctuations and by the XOR tracker.

Messages and bytes for K substreams and P nodes, in the task-to-task model of `tracker_traffic.py`, with P up to a
thousand; and what real flows write (`tracker_flows.py`), with as many tasks as two cores hold. The protocols' own code
sends every message that is counted in the first, so the counts are exact and the same in every run: figures have no
spread. They say nothing about time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession
from rich.box import SIMPLE_HEAD
from rich.table import Table

from holdfast.bench import tracker_flows, tracker_picture, tracker_traffic
from holdfast.bench.report import Bar, Figure, Report, wide_console
from holdfast.bench.tracker_traffic import Traffic
from holdfast.spark.session import make_session

BARS = {
    "tracker_linear_r2": Bar("at least", 0.99),
    "punctuation_over_tracker_p100": Bar("at least", 20.0),
}

# Tasks a stage of the real flows.
TASKS = (1, 2, 4, 8)
QUICK_TASKS = (1,)

NODES = (2, 5, 10, 20, 50, 100, 200, 500, 1_000)
COMPARED_AT = 100

# Epochs in which a task touches a substream. The tracker pays for each of them, punctuations do not: the second is
# there to show it.
EPOCHS = (1, 10)


def run(
    json_path: Path | None = None,
    svg_path: Path | None = None,
    *,
    nodes: Sequence[int] = NODES,
    substreams: int = 3,
    tasks: Sequence[int] | None = None,
    spark: SparkSession | None = None,
    quick: bool = False,
) -> Report:
    """Count, print the table and, if told where, write JSON and plot. `quick` only shows that it all runs."""
    if quick:
        nodes, substreams = (2, 10, COMPARED_AT), 1
    if tasks is None:
        tasks = QUICK_TASKS if quick else TASKS
    parameters = {
        "nodes": list(nodes),
        "substreams": substreams,
        "epochs": list(EPOCHS),
        "tasks": list(tasks),
        "quick": quick,
    }
    report = Report("tracker", 0, parameters, bars={} if quick else BARS)
    found = list(tracker_traffic.simulated(nodes, substreams, EPOCHS))
    report.figures += figures_of(found)
    report.runs += [{"measured": "simulation", **asdict(traffic)} for traffic in found]
    wide_console().print(traffic_table(found))
    flows = list(_measured(tasks, spark))
    report.runs += [{"measured": "flow", **asdict(one)} for one in flows]
    if flows:
        wide_console().print(tracker_flows.table_of(flows))
    report.show()
    if json_path:
        report.write(json_path)
    if svg_path:
        svg_path.write_text(tracker_picture.drawn(series_of(found)), encoding="utf-8")
    return report


def _measured(tasks: Sequence[int], spark: SparkSession | None) -> Iterator[tracker_flows.Written]:
    if tasks and spark is None:
        own = make_session("bench-tracker", "local[2]", {})
        try:
            yield from tracker_flows.measured(own, tasks)
        finally:
            own.stop()
    elif tasks:
        assert spark is not None
        yield from tracker_flows.measured(spark, tasks)


def series_of(found: Sequence[Traffic]) -> Mapping[str, list[Traffic]]:
    """By what is compared, from few nodes to many."""
    series: dict[str, list[Traffic]] = {}
    for traffic in sorted(found, key=lambda traffic: traffic.nodes):
        reports = f", {traffic.epochs} epochs a task" if traffic.epochs > 1 else ""
        series.setdefault(traffic.tracker + reports, []).append(traffic)
    return series


def figures_of(found: Sequence[Traffic]) -> list[Figure]:
    """How the traffic of both grows with the nodes, and how they compare at a hundred."""
    series = series_of(found)
    names = ("punctuations", "tracker", f"tracker, {EPOCHS[1]} epochs a task")
    punctuations, tracker, often = (series[name] for name in names)
    at = {name: next(t for t in series[name] if t.nodes == COMPARED_AT) for name in names}
    suffix = f"p{COMPARED_AT}"
    return [
        _exact("tracker_linear_r2", r2(tracker)),
        _exact(f"punctuation_over_tracker_{suffix}", at[names[0]].messages / at[names[1]].messages),
        _exact(f"punctuation_bytes_over_tracker_{suffix}", at[names[0]].bytes / at[names[1]].bytes),
        _exact(
            f"punctuation_over_tracker_{suffix}_{EPOCHS[1]}_epochs",
            at[names[0]].messages / at[names[2]].messages,
        ),
        _exact("punctuation_exponent", exponent(punctuations)),
        _exact("tracker_exponent", exponent(tracker)),
        _exact(f"tracker_linear_r2_{EPOCHS[1]}_epochs", r2(often)),
    ]


def r2(series: Sequence[Traffic]) -> float:
    """How much of the messages a straight line over the nodes explains."""
    nodes, messages = [t.nodes for t in series], [t.messages_each for t in series]
    return statistics.correlation(nodes, messages) ** 2


def exponent(series: Sequence[Traffic]) -> float:
    """The power of the nodes that messages grow with: the slope with both on logarithmic scales."""
    nodes, messages = [math.log(t.nodes) for t in series], [math.log(t.messages_each) for t in series]
    return statistics.linear_regression(nodes, messages).slope


def traffic_table(found: Sequence[Traffic]) -> Table:
    """For one substream: messages and bytes, by nodes."""
    series = series_of(found)
    table = Table(title="bench tracker: a substream", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("nodes", justify="right")
    for name in series:
        table.add_column(f"{name}: messages", justify="right")
        table.add_column("bytes", justify="right")
    for across in zip(*series.values(), strict=True):
        cells = [cell for t in across for cell in (f"{t.messages_each:,.0f}", f"{t.bytes_each:,.0f}")]
        table.add_row(f"{across[0].nodes:,}", *cells)
    return table


def _exact(name: str, value: float) -> Figure:
    return Figure(name, value, value, value)
