"""A loop that dies on its way round, or loses a part of what went round, still comes to rest at the one right result."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.sources.generated_rows import BLOCK_ROWS, Columns

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "score_propagation.py"

Score = dict[int, int]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose flow was killed on its way round: rows were fed back that nobody has read."""
    home = tmp_path_factory.mktemp("crashed")
    killed(home, "ship.before:12")
    unread = asked(
        home,
        "select count(*) from segments, cursors where segments.stage = 'passing' and rows > 0 and status = 'live'"
        " and consumer = 'stage:best' and input = 'channel:passing.out' and epoch >= processed",
    )
    assert unread > [(0,)]
    return home


@pytest.fixture
def home(crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    monkeypatch.setenv("SCORES_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(crashed, tmp_path / "home"))


def example() -> dict[str, object]:
    return runpy.run_path(str(EXAMPLE))


def generated(stream: object) -> list[dict[str, int]]:
    description = stream.node.description  # type: ignore[attr-defined]
    names = [column.split()[0] for column in description.schema.split(",")]
    columns = Columns("batch", description.recipe, pa.schema([(name, pa.int64()) for name in names]))
    blocks = [columns.block(number) for number in range(-(-description.rows // BLOCK_ROWS))]
    return pa.Table.from_batches(blocks).slice(0, description.rows).to_pylist()


def batch(module: dict[str, object]) -> Score:
    """The scores, by going along one edge at a time until none rises."""
    shares: dict[int, Score] = {}
    for edge in generated(module["edges"]):
        to = shares.setdefault(edge["node"], {})
        to[edge["to"]] = max(edge["percent"], to.get(edge["to"], 0))
    score: Score = {}
    todo = [(seed["node"], seed["score"]) for seed in generated(module["seeds"])]
    while todo:
        node, given = todo.pop()
        if given > score.get(node, -1):
            score[node] = given
            passed = [(to, given * percent // 100) for to, percent in shares.get(node, {}).items()]
            todo += [(to, share) for to, share in passed if share >= module["LEAST"]]  # type: ignore[operator]
    return score


def found(home: Path) -> Score:
    with closing(sqlite3.connect(home / "scores.db")) as target:
        return dict(target.execute("select node, score from scores"))


def asked(home: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(home / "work" / "ledger.db")) as ledger:
        return ledger.execute(query).fetchall()


def killed(home: Path, point: str) -> None:
    """Run the example in a process of its own until it kills itself with kill -9."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SCORES_HOME": str(home),
            "HOLDFAST_CRASH": point,
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def run_on(spark: SparkSession, home: Path) -> int:
    """Run the example to its rest and compare it with the batch; how many epochs were repaired."""
    module = example()
    flow = module["flow"]
    assert isinstance(flow, hf.Flow)
    report = flow.run(home / "work", until_idle=True, spark=spark)
    assert found(home) == batch(module)
    return sum(stage.repairs for stage in report.stages.values())


def segments(home: Path, stage: str) -> Iterator[Path]:
    return (home / "work" / "data" / stage).rglob("*.parquet")


@pytest.mark.timeout(900)
def test_a_loop_that_is_killed_on_its_way_round_goes_on_and_is_exact(home: Path, spark: SparkSession) -> None:
    assert run_on(spark, home) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_to_come_back_and_is_lost_is_made_again(home: Path, spark: SparkSession) -> None:
    lost = list(segments(home, "passing"))
    assert lost
    for file in lost:
        file.unlink()
    assert run_on(spark, home) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_and_what_it_was_made_of_are_made_again_all_the_way_round(
    home: Path, spark: SparkSession
) -> None:
    """The stage that comes first in the flow needs rows of one that comes later, and that is lost as well."""
    for file in [path for path in (home / "work" / "data").rglob("*") if path.is_file()]:
        file.unlink()
    assert run_on(spark, home) > 1
