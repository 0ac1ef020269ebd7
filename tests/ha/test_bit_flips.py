"""Flipped bits in the files of a flow, stopped and running: what comes out equals a batch, or the flow stops.

A file that a sink has linked into its target is the target's, and is left alone here.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, write_files
from flow_under_fire import SCHEMA, table
from unit.state.test_bit_flips import flip

# In all runs together, how many bits are flipped.
SOME_OR_ALL = pytest.mark.parametrize("flips", [8, pytest.param(200, marks=pytest.mark.slow)])
PER_RUN = 8


def build(home: Path) -> hf.Flow:
    """Two stages with state and a channel between them; keys and values are strings and numbers."""
    flow = hf.Flow("flipped")
    files = hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1)
    unique = flow.source("rows", files, ids="id")
    totals = unique.group_by("k", "s").agg(total=hf.sum("v"), n=hf.count(), hi=hf.max("x"), of=hf.max("s"))
    totals.named("totals").to(hf.parquet(str(home / "totals")))
    return flow


def feed(home: Path, first: int, files: int) -> None:
    write_files(home / "in", [table(n) for n in range(first, first + files)], first=first)


def check(spark: SparkSession, home: Path) -> None:
    fed = spark.read.schema(SCHEMA).parquet(str(home / "in")).dropDuplicates(["id"])
    aggregates = {"total": "sum(v)", "n": "count(1)", "hi": "max(x)", "of": "max(s)"}
    assert_same_rows(
        last_per_key(spark, home / "totals", ["k", "s"]), batch(spark, fed, ["k", "s"], aggregates)
    )


def named(home: Path) -> list[Path]:
    """The files that live layers and segments name, and that no target shares."""
    query = "select runs from layers where status = 'live' union all select files from segments where status = 'live'"
    with closing(sqlite3.connect(home / "work" / "ledger.db", timeout=30)) as ledger:
        groups = ledger.execute(query).fetchall()
    paths = [home / "work" / file["path"] for (group,) in groups for file in json.loads(group)]
    return sorted(path for path in paths if path.exists() and path.stat().st_nlink == 1)


def flip_one(path: Path, drawn: random.Random) -> None:
    flip(path, drawn.randrange(path.stat().st_size * 8))


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stopped")
    feed(home, 0, 6)
    build(home).run(home / "work", until_idle=True, spark=spark)
    return home


@pytest.mark.timeout(3600)
@SOME_OR_ALL
def test_bits_flipped_while_a_flow_is_stopped_give_no_wrong_row(
    stopped: Path, tmp_path: Path, spark: SparkSession, flips: int
) -> None:
    repaired = 0
    for seed in range(flips // PER_RUN):
        home, drawn = tmp_path / str(seed), random.Random(seed)
        shutil.copytree(stopped, home)
        files = named(home)
        for path in drawn.choices(files, k=PER_RUN):
            flip_one(path, drawn)
        feed(home, 6, 1)
        report = build(home).run(home / "work", until_idle=True, spark=spark)
        repaired += sum(stage.repairs for stage in report.stages.values())
        check(spark, home)
    assert repaired


@pytest.mark.timeout(3600)
@SOME_OR_ALL
def test_bits_flipped_while_a_flow_runs_give_no_wrong_row(
    tmp_path: Path, spark: SparkSession, flips: int
) -> None:
    """Its processes have mapped and checked the files before."""
    home, drawn, done = tmp_path, random.Random(flips), 0
    epochs = 6 + flips // 3
    feed(home, 0, epochs)
    running = Thread(
        target=build(home).run, args=(home / "work",), kwargs={"until_idle": True, "spark": spark}
    )
    running.start()
    while running.is_alive():
        time.sleep(0.3 if flips > 50 else 0.6)
        ledger = home / "work" / "ledger.db"
        if not ledger.exists() or done >= flips:
            continue
        try:
            files = [path for path in named(home) if path.suffix == ".arrow" or "rows-ids" in path.parts]
            if files:
                flip_one(drawn.choice(files), drawn)
                done += 1
        except (sqlite3.OperationalError, FileNotFoundError):
            continue
    running.join()
    assert done >= min(flips, 4)
    build(home).run(home / "work", until_idle=True, spark=spark)
    check(spark, home)
