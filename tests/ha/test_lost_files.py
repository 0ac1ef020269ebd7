"""Any one file deleted or truncated while the flow is stopped: made again with equal digests, or a clear stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from flow_under_fire import build
from stand import Stand


@pytest.fixture(scope="module")
def idle(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose flow stopped cleanly: what is left is the spine, merged below and fresh above."""
    stand = Stand(tmp_path_factory.mktemp("idle"))
    stand.feed(11)
    build(stand.home).run(stand.home / "work", until_idle=True, spark=spark, tasks=2)
    return stand.home


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose flow was killed midway: segments that nobody has read, files above the safe point, strays."""
    stand = Stand(tmp_path_factory.mktemp("crashed"))
    stand.feed(9)
    status, said = stand.run(HOLDFAST_CRASH="ship.before:4")
    assert status < 0, said
    return stand.home


def copied(home: Path, to: Path) -> Stand:
    """The same home elsewhere: its input keeps its times, its sinks and its work directory come along."""
    shutil.copytree(home, to)
    stand = Stand(to)
    stand.files = len(list((to / "in").glob("*.parquet")))
    return stand


def data_files(home: Path) -> list[Path]:
    return sorted(path.relative_to(home) for path in (home / "work" / "data").rglob("*") if path.is_file())


def named_files(home: Path) -> set[str]:
    """What the ledger's manifests name."""
    with sqlite3.connect(home / "work" / "ledger.db") as ledger:
        groups = ledger.execute("select runs from layers union all select files from segments").fetchall()
    return {file["path"] for (group,) in groups for file in json.loads(group)}


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(body)


def run_again(stand: Stand, spark: SparkSession) -> int:
    """Run the flow on; how many epochs were repaired."""
    stand.feed(1)
    report = build(stand.home).run(stand.home / "work", until_idle=True, spark=spark, tasks=2)
    return sum(stage.repairs for stage in report.stages.values())


# Every file takes a run of the flow: `make test` damages some of them, `make test-all` each.
SOME_OR_ALL = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])


@pytest.mark.timeout(900)
@SOME_OR_ALL
def test_every_file_of_a_spine_is_made_again_with_equal_digests(
    idle: Path, tmp_path: Path, spark: SparkSession, every: int
) -> None:
    names = data_files(idle)
    assert {str(name.relative_to("work")) for name in names} == named_files(idle)
    assert any("merge" in name.name for name in names)
    for number, name in enumerate(names[::every]):
        stand = copied(idle, tmp_path / str(number))
        damage(stand.home / name, "truncated" if number % 2 else "deleted")
        assert run_again(stand, spark) >= 1, name
        assert any(kind == "repaired" for kind, _ in stand.events()), name
        stand.check(spark)


@pytest.mark.timeout(1200)
@SOME_OR_ALL
def test_any_file_left_by_a_crash_may_be_damaged_in_any_way(
    crashed: Path, tmp_path: Path, spark: SparkSession, every: int
) -> None:
    names, repaired = data_files(crashed)[::every], 0
    for number, name in enumerate(names):
        kinds = "flipped", "deleted", "truncated"
        stand = copied(crashed, tmp_path / str(number))
        damage(stand.home / name, kinds[number % len(kinds)])
        repaired += run_again(stand, spark)
        stand.check(spark)
    assert repaired >= len(names) // 4


@pytest.mark.timeout(300)
def test_a_crash_in_the_middle_of_a_repair_is_repaired(
    idle: Path, tmp_path: Path, spark: SparkSession
) -> None:
    stand = copied(idle, tmp_path / "home")
    merged = next(name for name in data_files(stand.home) if "totals" in str(name) and "merge" in name.name)
    (stand.home / merged).unlink()
    status, said = stand.run(HOLDFAST_CRASH="repair.before_commit:3")
    assert status == -signal.SIGKILL, said
    assert run_again(stand, spark) >= 1
    assert sum(kind == "repaired" for kind, _ in stand.events()) >= 3
    stand.check(spark)


def test_what_cannot_be_made_again_stops_the_flow_and_says_why(
    idle: Path, tmp_path: Path, spark: SparkSession
) -> None:
    stand = copied(idle, tmp_path / "home")
    (stand.home / "in" / "00003.parquet").unlink()
    merged = next(name for name in data_files(stand.home) if "totals" in str(name) and "merge" in name.name)
    before = {path: path.read_bytes() for path in (stand.home / "totals").rglob("*.parquet")}
    (stand.home / merged).unlink()
    with pytest.raises(hf.StorageError, match=r"cannot be made again.*00003\.parquet is gone") as caught:
        build(stand.home).run(stand.home / "work", until_idle=True, spark=spark, tasks=2)
    assert (caught.value.stage, caught.value.epoch) == ("totals", 3)
    assert {path: path.read_bytes() for path in (stand.home / "totals").rglob("*.parquet")} == before


def test_input_that_no_state_depends_on_any_more_may_go(
    idle: Path, tmp_path: Path, spark: SparkSession
) -> None:
    stand = copied(idle, tmp_path / "home")
    for file in (stand.home / "in").glob("*.parquet"):
        file.unlink()
    assert run_again(stand, spark) == 0
    stand.check(spark)


def test_a_replay_that_gives_other_rows_stops_the_flow(tmp_path: Path, spark: SparkSession) -> None:
    flow = hf.Flow("random")
    rows = flow.source("rows", hf.rows([{"k": n} for n in range(50)], per_epoch=10))
    noisy = rows.transform(lambda df: df.selectExpr("k", "cast(rand() * 1000000 as long) as r"))
    noisy.group_by("k").agg(r=hf.max("r")).named("noise").to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    next((tmp_path / "work" / "data").rglob("*.arrow")).unlink()
    with pytest.raises(hf.FlowError, match="not deterministic") as caught:
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert caught.value.stage == "noise"


def test_lost_files_of_other_code_ask_for_the_old_code_once(
    idle: Path, tmp_path: Path, spark: SparkSession
) -> None:
    def counts(condition: str) -> hf.Flow:
        flow = hf.Flow("counts")
        rows = flow.source("rows", hf.rows([{"k": n % 3, "v": n} for n in range(9)], per_epoch=3))
        kept = (
            rows.transform(lambda df: df.where("v >= 0"))
            if condition == "old"
            else rows.transform(lambda df: df.where("v > -1"))
        )
        kept.group_by("k").agg(n=hf.count()).named("counts").to(hf.parquet(str(tmp_path / "out")))
        return flow

    counts("old").run(tmp_path / "work", until_idle=True, spark=spark)
    next((tmp_path / "work" / "data").rglob("*.arrow")).unlink()
    with pytest.raises(
        hf.StorageError, match="made by other code.*Run the flow once with the code of that epoch"
    ):
        counts("new").run(tmp_path / "work", until_idle=True, spark=spark)
    counts("old").run(tmp_path / "work", until_idle=True, spark=spark)
    counts("new").run(tmp_path / "work", until_idle=True, spark=spark)
