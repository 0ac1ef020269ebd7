"""`holdfast bench edges`: every sink beside the plain Spark way of writing the same segments to the same target.

An epoch is two segments, as two tasks leave them; a side is given one epoch after the other and returns the seconds of
each, from the first look at the segments until the rows are there to read. `plain` is Holdfast's own path without
record and fence: what exactly-once costs on top of it is `exactly_once_over_plain`, the worst of all targets.

What it does not show: a server that is far away or has other things to do, small epochs, recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.bench import edges_delta, edges_kafka, edges_parquet, edges_postgres, peers_spark
from holdfast.bench.data import default_directory
from holdfast.bench.edges_contract import Edge, Where
from holdfast.bench.edges_data import epoch_set
from holdfast.bench.report import Bar, Figure, Report
from holdfast.bench.rounds import Rounds, Size, add_rounds, measure, measuring
from holdfast.core.errors import PlanError

# A further target is a file of its own, and a line here.
EDGES: Mapping[str, Callable[[Where], Edge]] = {
    edges_parquet.NAME: edges_parquet.edge,
    edges_postgres.APPEND: edges_postgres.append,
    edges_postgres.UPSERT: edges_postgres.upsert,
    edges_kafka.NAME: edges_kafka.edge,
    edges_delta.NAME: edges_delta.edge,
}
NEED_POSTGRES = frozenset({edges_postgres.APPEND, edges_postgres.UPSERT})
NEED_KAFKA = frozenset({edges_kafka.NAME})

BARS = {"exactly_once_over_plain": Bar("at most", 1.1)}

ROWS = {edges_postgres.UPSERT: 500_000}
ROWS_USUALLY = 1_000_000
QUICK_ROWS = 2_000


def run(
    json_path: Path | None = None,
    *,
    where: Where | None = None,
    only: Sequence[str] = (),
    seed: int = 1,
    directory: Path | None = None,
    quick: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Measure, print the tables and, if told where, write the JSON. `quick` only shows that it all runs."""
    where = where or Where()
    edges = [EDGES[name](where) for name in _chosen(only, where)]
    sizes = [_size(edge, quick) for edge in edges]
    parameters = {
        "sizes": [asdict(size) for size in sizes],
        "session": peers_spark.SESSION_CONF,
        "jdbc": where.jdbc.name if where.jdbc else None,
        "quick": quick,
    }
    bars = {} if quick else {**BARS, **{name: bar for edge in edges for name, bar in edge.bars.items()}}
    report = Report("edges", seed, parameters, bars=bars)
    conf = {"spark.driver.extraClassPath": str(where.jdbc)} if where.jdbc else None
    with measuring(report, spark, json_path, conf) as session:
        for edge, size in zip(edges, sizes, strict=True):
            rounds = _measured(session, edge, size, directory or default_directory(), seed)
            add_rounds(report, size, rounds)
            report.figures += edge.figures(rounds)
        report.figures += worst(report.figures)
    return report


def worst(figures: Sequence[Figure]) -> list[Figure]:
    """What exactly-once costs where it costs most."""
    over = [figure for figure in figures if figure.name.endswith("_over_plain")]
    return (
        [replace(max(over, key=lambda figure: figure.value), name="exactly_once_over_plain")] if over else []
    )


def _chosen(only: Sequence[str], where: Where) -> list[str]:
    unknown = sorted(set(only) - set(EDGES))
    if unknown:
        raise PlanError(
            f"there is no {unknown[0]!r} to measure", operation="bench", hint=f"There are {', '.join(EDGES)}."
        )
    chosen = list(only) or list(EDGES)
    for server, option, given, needed in (
        ("PostgreSQL", "--postgres postgresql://...", where.postgres, NEED_POSTGRES),
        ("Kafka", "--kafka HOST:PORT", where.kafka, NEED_KAFKA),
    ):
        if given is None and needed.intersection(chosen):
            raise PlanError(
                f"there is no {server} to write to",
                operation="bench",
                hint=f"Give {option}, or start one with scripts/services; --only parquet needs none.",
            )
    return chosen


def _size(edge: Edge, quick: bool) -> Size:
    rows = ROWS.get(edge.name, ROWS_USUALLY)
    sides = tuple(edge.sides)
    if quick:
        return Size(edge.name, QUICK_ROWS, warmup=1, epochs=1, rounds=1, sides=sides)
    return Size(edge.name, rows, warmup=1, epochs=2, rounds=3, sides=sides)


def _measured(spark: SparkSession, edge: Edge, size: Size, home: Path, seed: int) -> Rounds:
    made = epoch_set(home, rows=size.rows, warmup=size.warmup, epochs=size.epochs, seed=seed)
    fast = {name: side for name, side in edge.sides.items() if name not in edge.slow}
    slow = {name: side for name, side in edge.sides.items() if name in edge.slow}
    rounds = dict(measure(spark, size, made, fast))
    return {**rounds, **measure(spark, replace(size, rounds=1), made, slow)}
