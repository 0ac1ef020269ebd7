"""`holdfast snapshot` on a real flow: created while it runs, returned to while it does not, exact when it runs again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from captured_flow import STAGES, build, table
from command import Said, holdfast


def feed(home: Path, *numbers: int) -> None:
    for side in "ab":
        (home / f"in-{side}").mkdir(exist_ok=True)
        for number in numbers:
            pq.write_table(table(side, number), home / f"in-{side}" / f"{number:04}.parquet")


def times(home: Path, out: str = "") -> dict[int | None, int]:
    with closing(sqlite3.connect(home / f"out{out}.db")) as target:
        return dict(target.execute("select k, times from totals").fetchall())


def expected(home: Path) -> dict[int | None, int]:
    """Every file of a side tells `together` once of each of its keys."""
    found: dict[int | None, int] = {}
    for file in home.glob("in-*/*.parquet"):
        for key in pq.read_table(file)["k"].unique().to_pylist():
            found[key] = found.get(key, 0) + 1
    return found


def dump(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "work" / "ledger.db")) as ledger:
        return list(ledger.iterdump())


def snapshot(home: Path, *words: object) -> Said:
    return holdfast("snapshot", *words, "--work-dir", home / "work", "--json")


def run(flow: hf.Flow, home: Path, spark: SparkSession, observe=None) -> None:  # type: ignore[no-untyped-def]
    flow.run(home / "work", until_idle=True, spark=spark, observe=observe)


@pytest.mark.timeout(500)
def test_a_snapshot_is_created_while_the_flow_runs_and_restored_to_new_targets_exactly(
    spark: SparkSession, tmp_path: Path
) -> None:
    home, said = tmp_path, {}
    feed(home, 0, 1, 2)

    def ask(progress: object) -> None:
        stages = getattr(progress, "stages", {})
        if not said and "totals" in stages and stages["totals"].epoch >= 0:
            early = "create", "--name", "early", "--timeout", "200"
            said["text"] = holdfast("snapshot", *early, "--work-dir", home / "work")
            said["again"] = snapshot(home, "create", "--name", "early")

    run(build(home, "unaligned", "1 hour"), home, spark, ask)
    assert said["text"].status == 0, said["text"].err
    lines = said["text"].out.splitlines()
    assert lines[0] == "snapshot 1 is asked for"
    assert {f"stage {stage} has added its part" in said["text"].out for stage in STAGES} == {True}
    assert lines[-1].startswith("snapshot 1 (early) is complete after ")
    assert lines[-1].endswith("It stays until `holdfast snapshot delete early`.")
    assert said["again"].error["message"] == "snapshot 1 has the name 'early' already"

    feed(home, 3, 4)
    run(build(home, "unaligned", "1 hour"), home, spark)
    assert times(home) == expected(home)
    check_the_list(home)
    check_refusals(home)
    before = dump(home)
    would = snapshot(home, "restore", "early", "--new-targets", "--dry-run").json
    assert dump(home) == before, "a dry run changes nothing"
    did = snapshot(home, "restore", "early", "--new-targets").json
    assert {**did, "dry_run": True} == would
    check_what_was_undone(home, did)

    with pytest.raises(hf.SinkError, match="the target is ahead of the ledger"):
        run(build(home, "unaligned", "1 hour"), home, spark)
    run(build(home, "unaligned", "1 hour", out="-2"), home, spark)
    assert times(home, "-2") == expected(home)
    feed(home, 5)
    run(build(home, "unaligned", "1 hour", out="-2"), home, spark)
    assert times(home, "-2") == expected(home)

    shutil.rmtree(home / "together-2")
    shutil.rmtree(home / ".together-2.holdfast")
    with pytest.raises(hf.SinkError, match="the target is behind the ledger"):
        run(build(home, "unaligned", "1 hour", out="-2"), home, spark)


def check_the_list(home: Path) -> None:
    found = snapshot(home, "list").json["snapshots"]
    early, newest = found[1], found[-1]
    assert [one["number"] for one in found] == list(range(len(found)))
    assert (early["name"], early["asked"], early["status"]) == ("early", True, "done")
    assert [one["number"] for one in found if one["kept"]] == [1, newest["number"]]
    assert set(early["epochs"]) == set(STAGES)
    assert early["bytes"] > 0
    shown = snapshot(home, "show", "early").json
    assert shown["needed_by"] == ["whoever asked for it, until it is deleted"]
    assert set(shown["parts"]) == set(STAGES)
    for side, stage in (("a", "left"), ("b", "right")):
        part = shown["parts"][stage]
        assert part["positions"] == {f"source:{side}": part["epoch"] + 1}
    for channel, flying in shown["parts"]["together"]["in_flight"].items():
        start, stop = flying["epochs"]
        assert flying["rows"] > 0
        assert start == shown["parts"]["together"]["positions"][channel]
        assert stop == shown["parts"][channel.removeprefix("channel:").removesuffix(".out")]["epoch"] + 1
    assert {who["consumer"] for who in shown["ahead"]} == {"sink:together-sink-1", "sink:totals-sink-1"}
    listed = holdfast("snapshot", "list", "--work-dir", home / "work").out.splitlines()
    assert len(listed) == len(found) + 1


def check_refusals(home: Path) -> None:
    error = snapshot(home, "delete", "latest").error
    assert "is the newest that is complete: a failure would return to it" in error["message"]
    error = snapshot(home, "restore", "0", "--new-targets").error
    assert error["message"] == "snapshot 0 cannot be returned to: what it needs is no longer kept"
    for more in ((), ("--dry-run",)):
        error = snapshot(home, "restore", "early", *more).error
        assert "sink:together-sink-1 has had epoch" in error["message"]
        assert "sink:totals-sink-1 has had epoch" in error["message"]
        assert "--new-targets" in error["hint"]


def check_what_was_undone(home: Path, did: dict) -> None:
    (early,) = (one for one in snapshot(home, "list").json["snapshots"] if one["name"] == "early")
    assert [one["number"] for one in snapshot(home, "list").json["snapshots"]] == [0, 1]
    for stage, undone in did["stages"].items():
        assert undone["epoch"] == early["epochs"][stage]
        assert undone["undone"] == undone["head"] - undone["epoch"] >= 1
    first = early["epochs"]["left"] + 1
    assert did["stages"]["left"]["reads_again"] == {
        "source:a": {"positions": [first, 5], "rows": 60 * (5 - first)}
    }
    assert {one["sink"] for one in did["new_targets"]} == {"together-sink-1", "totals-sink-1"}
    status = holdfast("status", "--work-dir", home / "work", "--json").json
    assert {name: stage["epoch"] for name, stage in status["stages"].items()} == early["epochs"]
    assert (status["running"], status["holder"]) == (False, None)
