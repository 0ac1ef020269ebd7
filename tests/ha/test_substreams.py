"""A process with substreams under way is killed around its commits: no end is lost, none comes twice or early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import substreams_flow
from batch import assert_same_rows, batch, read_sink, write_files
from event_time import ids_of
from holdfast.ledger import schema
from holdfast.ledger.ledger import reading
from substreams_flow import build, table

FLOW = Path(substreams_flow.__file__)
BATCHES = 3
FILES = 2 * BATCHES

# A flow for `holdfast verify`: windows as labels, both ways to wait for their end.
VERIFIED = """
import holdfast as hf

def nothing_yet(rows, state, context):
    fresh = rows.group_by(["substream", "user"]).aggregate([("n", "count")])
    return fresh.select(["substream", "user", "n_count"]).rename_columns(["substream", "user", "last"]), None

def final(state, context):
    return state.select(["substream", "user", "last"])

flow = hf.Flow("labelled")
events = flow.source(
    "events",
    hf.generate(
        "id string, user string, n int, ts timestamp",
        rows=3_000, per_epoch=500, keys={"user": 20}, seed=3, disorder="2 seconds",
    ),
)
seconds = events.substream(time="ts", every="1 second", late="1 second").named("seconds")
totals = seconds.group_by("substream", "user", emit="end").agg(n=hf.count()).named("totals")
totals.to(hf.parquet("totals"))
seconds.stateful(
    nothing_yet, by=["substream", "user"], state="last long",
    output="substream string, user string, last long", on_end=final,
).named("last").to(hf.table("sqlite:///last.db", "last"))
"""


def run_until_killed(home: Path, tracker: str, moment: str) -> None:
    process = subprocess.run(
        [sys.executable, str(FLOW), str(home), tracker],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FLOW.parent), *sys.path]),
            "HOLDFAST_CRASH": moment,
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == -signal.SIGKILL, process.stdout + process.stderr


def ended(work: Path) -> dict[str, bool]:
    with reading(work) as tx:
        return {row.label: row.ended_ms is not None for row in tx.execute(sa.select(schema.substreams))}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tracker", ["xor", pytest.param("punctuation", marks=pytest.mark.slow)])
def test_kill_9_around_commits_loses_no_end_and_repeats_none(
    spark: SparkSession, tmp_path: Path, tracker: str
) -> None:
    tables = [table(number) for number in range(FILES)]
    write_files(tmp_path / "in", tables)
    run_until_killed(tmp_path, tracker, "commit.before:6")
    run_until_killed(tmp_path, tracker, "commit.after:5")
    build(tmp_path, tracker).run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert ended(tmp_path / "work") == {f"batch {number}": True for number in range(BATCHES)}
    rows = pa.concat_tables(tables)
    starts = {f"batch {n}": 2 * substreams_flow.ROWS_PER_FILE * n for n in range(BATCHES + 1)}
    after = [starts[f"batch {int(b[6:]) + 1}"] for b in rows["batch"].to_pylist()]
    late = rows.filter(pc.greater_equal(rows["id"], pa.array(after)))
    assert ids_of(tmp_path / "late") == sorted(late["id"].to_pylist())
    on_time = rows.filter(pc.less(rows["id"], pa.array(after)))
    expected = batch(spark, spark.createDataFrame(on_time), ["batch", "k"], {"n": "count(1)", "s": "sum(v)"})
    found = spark.read.parquet(str(tmp_path / "totals")).drop("epoch")
    assert_same_rows(found.withColumnRenamed("substream", "batch"), expected)
    large = read_sink(tmp_path / "large")
    assert large.num_rows == expected.where("s > 100").count()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("played", [(), ("--standbys=1", "--workers=2")], ids=["alone", "supervised"])
def test_verify_finds_no_violation_in_a_flow_with_substreams(tmp_path: Path, played: tuple[str, ...]) -> None:
    (tmp_path / "labelled.py").write_text(VERIFIED)
    report = tmp_path / "report.json"
    words = [
        "verify",
        str(tmp_path / "labelled.py"),
        "--points=commit.before,commit.after,sink.after_publish",
        *played,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words, f"--json={report}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    struck = [run for run in json.loads(report.read_text())["outcomes"] if run["reached"]]
    assert {run["observed"] for run in struck} == {"precise"}
    assert {run["point"] for run in struck} == {"commit.before", "commit.after", "sink.after_publish"}
