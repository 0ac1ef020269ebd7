"""Snapshots of a region: cuts are consistent in every mode, sinks have what is covered, a return repeats nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from captured_flow import SCHEMA, STAGES, build, table
from holdfast.flow.planner import plan
from holdfast.ledger import snapshots
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols.snapshots import channel_state, flaws
from interrupted import orphan, run_until


def feed(home: Path, files: int, first: int = 0) -> None:
    """More files for `a` than for `b`, so that the sides of `together` are never in step."""
    for side, number in (("a", files), ("b", (files + 1) // 2)):
        place = home / f"in-{side}"
        place.mkdir(exist_ok=True)
        for i in range(first, first + number):
            pq.write_table(table(side, i), place / f"{i:04}.parquet")


def expected(home: Path) -> dict[int | None, int]:
    """By key, how often `together` is told of it: once for each file of a side that has it."""
    times: dict[int | None, int] = {}
    for file in home.glob("in-*/*.parquet"):
        for key in pq.read_table(file)["k"].unique().to_pylist():
            times[key] = times.get(key, 0) + 1
    return times


def found(home: Path) -> dict[int | None, int]:
    with closing(sqlite3.connect(home / "out.db")) as target:
        return dict(target.execute("select k, times from totals").fetchall())


def taken(home: Path) -> list[Snapshot]:
    with closing(Ledger(home / "work")) as ledger, ledger.read() as tx:
        return snapshots.all_snapshots(tx)


def asked(home: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(home / "work" / "ledger.db")) as ledger, ledger:
        return ledger.execute(query).fetchall()


@pytest.mark.parametrize("mode", ["aligned", "unaligned", pytest.param("freeze", marks=pytest.mark.slow)])
def test_every_cut_is_consistent_and_a_region_that_lost_its_worker_returns_to_the_last(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    feed(tmp_path, 6)
    flow = build(tmp_path, mode, "200 ms")
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path) == expected(tmp_path)
    check_cuts(tmp_path, flow, mode)
    last = taken(tmp_path)[-1]
    feed(tmp_path, 3, first=6)
    # So seldom that all of this is committed, and covered by no snapshot, when the worker is lost.
    seldom = build(tmp_path, mode, "1 hour")
    run_until(
        seldom, tmp_path / "work", spark, lambda: head(tmp_path, "totals") >= last.parts["totals"].epoch + 2
    )
    covered = {stage: part.epoch for stage, part in last.parts.items()}
    assert dict(asked(tmp_path, "select stage, safe from tiers where tier = 'disk'")) == covered
    published = asked(tmp_path, "select input, processed from cursors where consumer like 'sink:%'")
    assert all(at == covered[name[len("channel:") : -len(".out")]] + 1 for name, at in published)

    orphan(tmp_path / "work")
    build(tmp_path, mode, "200 ms").run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path) == expected(tmp_path)
    assert asked(tmp_path, "select distinct branch from stages") == [(1,)]
    assert dict(asked(tmp_path, "select stage, epoch from events where kind = 'returned'")) == covered
    check_cuts(tmp_path, flow, mode)


def check_cuts(home: Path, flow: hf.Flow, mode: str) -> None:
    complete = [one for one in taken(home) if one.is_complete]
    assert len(complete) >= 3, "the run was too short to show anything"
    region = plan(flow).region
    for one in complete:
        assert not flaws(region, one.parts)
        if mode == "aligned":
            assert not channel_state(region, one.parts)
    assert {one.status for one in complete} == {"done"}
    assert [one.mode for one in complete] == ["freeze", *[mode] * (len(complete) - 1)]
    for stage in STAGES:
        (of_layers,) = asked(
            home, f"select sum(json_extract(body, '$.layer_bytes')) from manifests where stage = '{stage}'"
        )[0]
        assert sum(one.bytes[stage] for one in complete) > of_layers, "segments are carried too"


def test_a_snapshot_that_takes_too_long_is_dropped_counted_and_then_fails_the_flow(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path, 4)
    flow = build(tmp_path, "aligned", "200 ms", timeout="1 us", tolerate=1)
    with pytest.raises(hf.FlowError, match="2 snapshots in a row have failed, and 1 are tolerated"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
    dropped = [one for one in taken(tmp_path) if one.status == "aborted"]
    assert [one.to_blame for one in dropped] == [True, True]
    build(tmp_path, "aligned", "200 ms").run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path) == expected(tmp_path)


@pytest.mark.parametrize("mode", ["aligned", pytest.param("at_least_once", marks=pytest.mark.slow)])
def test_markers_behind_epochs_without_rows_are_reached(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Rows of the first file pass the filter, of the second none: `counted` finds nothing to read, and is waited for."""
    feed(tmp_path, 2)
    guarantee = "at_least_once" if mode == "at_least_once" else "exactly_once"
    policy = hf.snapshot("100 ms", mode, timeout="30 s", tolerate=0)
    flow = hf.Flow("filtered", guarantee=guarantee, recover=policy)
    rows = flow.source("a", hf.files(str(tmp_path / "in-a"), schema=SCHEMA, max_files_per_epoch=1))
    kept = (
        rows.transform(lambda df: df.where("v between 30 and 55"))
        .group_by("k")
        .agg(v=hf.max("v"))
        .named("kept")
    )
    counted = kept.as_rows().group_by("k").agg(n=hf.count()).named("counted")
    counted.to(hf.table(f"sqlite:///{tmp_path / 'out.db'}", "counted", key="k"))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    last = taken(tmp_path)[-1]
    assert (last.status, last.parts["kept"].epoch, head(tmp_path, "kept")) == ("done", 1, 1)
    assert last.parts["counted"].positions == {"channel:kept.out": 2}


def test_at_least_once_returns_to_the_markers_although_the_state_has_seen_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nobody waits: `together` has read beyond a marker when it is captured, and counts that again after the loss."""
    feed(tmp_path, 14)
    flow = build(tmp_path, "at_least_once", "200 ms", slow=True)
    run_until(flow, tmp_path / "work", spark, lambda: bool(seen_beyond_a_marker(tmp_path)))
    last = [one for one in taken(tmp_path) if one.is_complete][-1]
    assert not flaws(plan(flow).region, last.parts)
    orphan(tmp_path / "work")
    build(tmp_path, "at_least_once", "200 ms").run(tmp_path / "work", until_idle=True, spark=spark)
    exact = expected(tmp_path)
    repeated = {key: times - exact[key] for key, times in found(tmp_path).items()}
    assert min(repeated.values()) >= 0, "nothing is lost"
    assert max(repeated.values()) >= 1, "what was counted before the loss counts again"


def seen_beyond_a_marker(home: Path) -> list[tuple]:
    """The last complete snapshot, if it has a part whose state has read more than the part's positions say."""
    return asked(
        home,
        """select number from snapshot_parts join plans using (stage, epoch), json_each(plans.body, '$.ranges') as read
           where number = (select max(number) from snapshots where status in ('committed', 'done'))
           and json_extract(positions, '$."' || read.key || '"') < json_extract(read.value, '$[1]')""",
    )


def head(home: Path, stage: str) -> int:
    return int(asked(home, f"select head from stages where stage = '{stage}'")[0][0])
