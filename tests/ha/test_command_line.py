"""The command line as a user types it, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from batch import read_sink, write_files
from holdfast.ledger.roster import roster

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
FLOW = """
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

import holdfast as hf


def helper(value):
    return None if value is None else value * 2


@f.udf(LongType())
def doubled(value):
    return helper(value)


flow = hf.Flow("doubling")
rows = flow.source("rows", hf.files("in/", schema="k long, v long", max_files_per_epoch=1))
rows.transform(lambda df: df.withColumn("v", doubled("v"))).group_by("k").agg(s=hf.sum("v")).named("sums").to(
    hf.parquet("out/")
)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "my_flow.py").write_text(FLOW)
    write_files(tmp_path / "in", [pa.table({"k": [1, 2, None], "v": [n, n, 5]}) for n in range(3)])
    return tmp_path


def holdfast(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HOLDFAST, *arguments], cwd=home, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.timeout(300)
def test_run_then_status_with_functions_of_the_flows_own_file(home: Path) -> None:
    done = holdfast(home, "run", "my_flow.py", "--work-dir", "work", "--until-idle", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    assert "sums: 3 epochs, 9 rows" in done.stdout
    rows = read_sink(home / "out").to_pylist()
    assert max((r["epoch"], r["s"]) for r in rows if r["k"] is None) == (2, 30)
    found = json.loads(holdfast(home, "status", "--work-dir", "work", "--json").stdout)
    assert found["flow"] == "doubling"
    assert found["running"] is False
    assert (found["stages"]["sums"]["epoch"], found["stages"]["sums"]["state_rows"]) == (2, 3)
    assert "not running" in holdfast(home, "status", "--work-dir", "work").stdout
    check_what_it_left(home)


def check_what_it_left(home: Path) -> None:
    """State by a predicate that has Spark, and the errors of running in a directory that is another flow's."""
    words = ["state", "sums", "--where", "k is null or s = 6", "--columns", "s", "--json"]
    found = holdfast(home, *words)
    assert found.returncode == 0, found.stderr
    assert sorted(row["s"] for row in json.loads(found.stdout)["rows"]) == [6, 6, 30]
    mistaken = holdfast(home, "state", "sums", "--where", "no_such = 1", "--json")
    assert mistaken.returncode == 1
    last = json.loads(mistaken.stderr.splitlines()[-1])["error"]
    assert (last["kind"], last["hint"]) == ("FlowError", "The columns are k, s.")
    assert "DataFrameQueryContextLogger" not in mistaken.stderr
    (home / "other_flow.py").write_text(FLOW.replace('"doubling"', '"other"'))
    other = holdfast(home, "run", "other_flow.py", "--work-dir", "work", "--until-idle", "--json")
    error = json.loads(other.stderr)["error"]
    assert (other.returncode, error["kind"]) == (1, "LedgerError")
    assert "belongs to flow 'doubling', not to 'other'" in error["message"]
    with sqlite3.connect(home / "work" / "ledger.db") as ledger:
        ledger.execute("update flow set format_version = 99")
    newer = holdfast(home, "run", "my_flow.py", "--work-dir", "work", "--until-idle")
    assert "has format version 99" in newer.stderr


@pytest.mark.timeout(300)
def test_sigterm_is_a_clean_stop_and_the_next_run_goes_on(home: Path) -> None:
    process = subprocess.Popen(
        [HOLDFAST, "run", "my_flow.py:flow", "--work-dir", "work", "--master", "local[2]"],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        deadline = time.monotonic() + 120
        while not list((home / "out").glob("epoch=00000002")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = holdfast(
            home, "run", "my_flow.py", "--work-dir", "work", "--until-idle", "--master", "local[2]", "--json"
        )
        assert second.returncode == 1
        error = json.loads(second.stderr)["error"]
        assert f"process {process.pid}" in error["message"]
        assert "--take-over" in error["hint"]
        running = json.loads(holdfast(home, "state", "sums", "--json").stdout)
        assert {row["k"]: row["s"] for row in running["rows"]} == {1: 6, 2: 6, None: 30}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "Stopped" in out
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            for worker in roster(home / "work")["groups"]["main"]["workers"]:
                os.kill(worker["process"]["pid"], signal.SIGKILL)
    found = json.loads(holdfast(home, "status", "--work-dir", "work", "--json").stdout)
    assert found["holder"] is None
    kinds = [event["kind"] for event in found["events"]]
    assert kinds[-2:] == ["left", "released"], "the worker should have stopped cleanly, then its supervisor"


def test_mistakes_are_told_in_one_paragraph(home: Path) -> None:
    missing = holdfast(home, "run", "missing.py", "--until-idle")
    assert missing.returncode == 1
    assert "FlowImportError: there is no file missing.py\n  where: import\n" in missing.stderr
    assert "Traceback" not in missing.stderr
    nothing = holdfast(home, "status", "--work-dir", "nowhere")
    assert "LedgerError" in nothing.stderr
