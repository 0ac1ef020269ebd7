"""Every operator and every sink that needs no server, in one flow: what `tests/edges/test_checks.py` takes through every scenario.

Rows come late by less than the windows wait, so that what all sinks hold in the end is a function of the files alone. The
home, the recovery policy and, for `python checks_flow.py`, what the run is to do come from the environment and the arguments.
"""

from __future__ import annotations

import json
import os
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from batch import write_files
from holdfast.flow.flow import Stream
from holdfast.flow.policies import Policy

POLICIES: dict[str, Policy] = {
    "alone": hf.no_sync(),
    "warm": hf.no_sync(members=2),
    "strong": hf.strong_production(),
    "standby": hf.passive_standby(every=2),
    "snapshot": hf.snapshot("1 second"),
}

SCHEMA = "id long, k long, v long, d decimal(12,2), s string, ts timestamp"
LATE = "10 minutes"
ROWS_PER_FILE = 120
_START_US = 1_774_738_800_000_000
_SECOND_US = 1_000_000


def table(number: int, seed: int) -> pa.Table:
    """The rows of a file: a minute of event time in no order, some ids of the file before, some nulls."""
    first = number * ROWS_PER_FILE
    ids = [*range(max(0, first - 10), first), *range(first, first + ROWS_PER_FILE)]
    mixed = [(i * 7919 + seed * 31) % 1009 for i in ids]
    times = [
        _START_US + (i // ROWS_PER_FILE * 60 + n % 60) * _SECOND_US for i, n in zip(ids, mixed, strict=True)
    ]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([None if n % 53 == 0 else n % 20 for n in mixed], pa.int64()),
            "v": pa.array([None if n % 17 == 0 else n - 500 for n in mixed], pa.int64()),
            "d": pa.array([None if n % 19 == 0 else Decimal(n) / 4 for n in mixed], pa.decimal128(12, 2)),
            "s": pa.array([None if n % 11 == 0 else "abc"[n % 3] for n in mixed]),
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )


def feed(home: Path, first: int, files: int) -> None:
    """Files of both streams, and the table that one of them is enriched with."""
    for seed, name in enumerate(("left", "right")):
        write_files(home / name, [table(number, seed) for number in range(first, first + files)], first)
    if first == 0:
        write_files(home / "names", [pa.table({"s": ["a", "b"], "name": ["first", "second"]})])


def streaks(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """Per key, how many rows so far, and the largest id."""
    fresh = rows.group_by("k").aggregate([("id", "count"), ("id", "max")]).rename_columns(["k", "n", "top"])
    both = pa.concat_tables([state, fresh.cast(state.schema)])
    held = both.group_by("k").aggregate([("n", "sum"), ("top", "max")]).rename_columns(["k", "n", "top"])
    return held, held


def build(home: Path, policy: str) -> hf.Flow:
    """The flow under a policy."""
    flow = hf.Flow("checks", recover=POLICIES[policy])
    left, right = (
        flow.source(name, hf.files(home / name, schema=SCHEMA, max_files_per_epoch=1))
        for name in ("left", "right")
    )
    to_sinks(home, left.group_by("k").agg(n=hf.count(), total=hf.sum("v"), spent=hf.sum("d")).named("totals"))
    left.group_by("s").agg(
        low=hf.min("v"),
        high=hf.max("d"),
        mean=hf.avg("v"),
        spread=hf.stddev("v"),
        varied=hf.variance("v"),
        kinds=hf.count_distinct("k"),
        about=hf.approx_distinct("id"),
        oldest=hf.first("id", by="id"),
        newest=hf.last("d", by="id"),
        listed=hf.collect_list("v", by="id"),
        known=hf.collect_set("k"),
        best=hf.top_k("v", 3),
        middle=hf.percentile("v", 0.5),
    ).named("every_aggregate").to(hf.parquet(home / "every_aggregate"))
    left.group_by().agg(n=hf.count(), total=hf.sum("v")).named("total").to(hf.parquet(home / "total"))

    unique = left.dedup("id", time="ts", within="1 hour").named("unique")
    unique.to(hf.parquet(home / "unique", single_file=True))
    unique.to(hf.foreach(sender(home), idempotent=True))
    unique.to(hf.discard())
    for kind, window in {
        "tumbling": {"tumbling": "30 seconds"},
        "sliding": {"sliding": ("1 minute", "20 seconds")},
        "session": {"session": "3 seconds"},
    }.items():
        windows = unique.group_by("s").window("ts", late=LATE, **window)
        windows.agg(n=hf.count(), total=hf.sum("v")).named(kind).to(hf.parquet(home / kind))

    near = {"on": "k", "time": ("ts", "ts"), "within": ("-2 seconds", "2 seconds"), "late": LATE}
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        joined = left.join(right.select("k", "ts", other="id"), **near, how=how)
        joined.named(f"{how}_join").to(hf.parquet(home / f"{how}_join"))

    left.where("k is not null").stateful(
        streaks, by="k", state="n long, top long", output="k long, n long, top long"
    ).named("own").to(hf.parquet(home / "own"))
    named = left.enrich(hf.files(home / "names", schema="s string, name string"), on="s", refresh=None)
    steps = named.union(right.with_columns({"name": "'right'"})).filter("v > 0").rename(v="value").drop("d")
    steps.with_column("half", "value / 2").named("steps").to(hf.parquet(home / "steps"))
    return flow


def to_sinks(home: Path, totals: Stream) -> None:
    """One stream into every kind of target that needs no server."""
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    database = f"sqlite:///{home}/out.db"
    for sink in (
        hf.parquet(home / "totals"),
        hf.table(database, "upserted", key="k"),
        hf.table(database, "appended"),
        hf.delta(str(home / "delta")),
        hf.iceberg(catalog, "checks.totals"),
    ):
        totals.to(sink)


def sender(home: Path) -> object:
    """A function of the user's that has its effect once per token: a file of that name."""

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        (home / "sent").mkdir(exist_ok=True)
        made = home / "sent" / f".{token}"
        made.write_text(json.dumps(rows["id"].to_pylist()))
        made.rename(home / "sent" / token)

    return send


_home = Path(os.environ.get("CHECKS_HOME", "checks"))
flow = build(_home, os.environ.get("CHECKS_POLICY", "alone"))

if __name__ == "__main__":
    flow.run(
        _home / "work",
        master="local[2]",
        tasks=2,
        conf={"spark.driver.memory": "1g"},
        ledger=os.environ.get("CHECKS_LEDGER"),
        **dict.fromkeys(sys.argv[1:], True),
    )
