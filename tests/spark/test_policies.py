"""Every recovery policy changes which files exist, where and when; what happens after a failure is in tests/ha."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, ddl, last_per_key, write_files
from event_time import START_US, UTC_TIME
from holdfast.flow.policies import Policy
from holdfast.ledger import epochs, skips
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.storage import shipper
from interrupted import Enough, orphan

FILES, ROWS = 7, 20


def table(number: int) -> pa.Table:
    """A file is a minute of event time."""
    times = [START_US + (number * 60 + i) * 1_000_000 for i in range(ROWS)]
    return pa.table(
        {"k": [i % 5 for i in range(ROWS)], "v": list(range(ROWS)), "ts": pa.array(times).cast(UTC_TIME)}
    )


def run(
    home: Path,
    spark: SparkSession,
    policy: Policy,
    windows: bool = False,
    files: int = FILES,
    transform: Callable[[DataFrame], DataFrame] = lambda df: df,
    **flow: object,
) -> Path:
    """Seven epochs of one stage; the work directory."""
    tables = [table(number) for number in range(files)]
    if not (home / "in").exists():
        write_files(home / "in", tables)
    guarantee = "exactly_once" if policy.precise else "at_most_once"
    made = hf.Flow("policies", guarantee=guarantee, recover=policy, **flow)  # type: ignore[arg-type]
    schema = ddl(tables[0].schema)
    rows = made.source("rows", hf.files(str(home / "in"), schema=schema, max_files_per_epoch=1))
    by_key = rows.transform(transform).group_by("k")
    grouped = by_key.window("ts", tumbling="3 minutes") if windows else by_key
    grouped.agg(s=hf.sum("v"), n=hf.count()).named("totals").to(hf.parquet(str(home / "out")))
    made.run(home / "work", until_idle=True, spark=spark)
    return home / "work"


def asked(work: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(work / "ledger.db")) as ledger:
        return ledger.execute(query).fetchall()


def safe(work: Path) -> dict[str, int]:
    return dict(asked(work, "select tier, safe from tiers"))


def names(place: Path) -> set[str]:
    """The state's files below a directory, relative to it."""
    return {str(path.relative_to(place)) for path in (place / "data").rglob("*.arrow")}


@pytest.mark.parametrize(
    ("policy", "tiers"),
    [
        (hf.gap(), {}),
        (hf.no_sync(("memory",)), {}),
        (hf.no_sync(), {"disk": FILES - 1}),
        (hf.strong_production(), {"disk": FILES - 1}),
        (hf.active_standby(), {"disk": FILES - 1}),
        (hf.passive_standby(every=3), {"standby": 5}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_files_reach_the_tiers_of_the_policy_and_no_others(
    spark: SparkSession, tmp_path: Path, policy: Policy, tiers: dict[str, int]
) -> None:
    flow = {"survives": "process"} if policy.tiers == ("memory",) else {}
    work = run(tmp_path, spark, policy, **flow)
    found = safe(work)
    if "standby" in tiers:
        assert found.keys() == {"standby"}
        assert FILES - 3 <= found["standby"] <= FILES - 1
        assert names(work / "standby")
    else:
        assert found == tiers
        assert not (work / "standby").exists()
    assert asked(work, "select processed from cursors where consumer = 'stage:totals'") == [(FILES,)]


def test_strong_production_commits_nothing_that_is_not_on_the_disk(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[str] = set()
    missing: list[Sequence[str]] = []
    make_durable, commit_epoch = shipper.make_durable, epochs.commit_epoch

    def remembering(root: Path, paths: Sequence[str]) -> None:
        make_durable(root, paths)
        flushed.update(paths)

    def checked(ledger: Ledger, commit: Commit) -> StageRow:
        files = [
            *(commit.layer or {"runs": []})["runs"],
            *(f for s in commit.segments.values() for f in s["files"]),
        ]
        assert files
        missing.append([file["path"] for file in files if file["path"] not in flushed])
        return commit_epoch(ledger, commit)

    monkeypatch.setattr(shipper, "make_durable", remembering)
    monkeypatch.setattr(epochs, "commit_epoch", checked)
    run(tmp_path / "strong", spark, hf.strong_production())
    assert missing == [[]] * FILES
    missing.clear()
    run(tmp_path / "behind", spark, hf.no_sync())
    assert [bool(paths) for paths in missing] == [True] * FILES


def test_upstream_backup_keeps_the_input_of_open_windows_and_no_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    work = run(tmp_path, spark, hf.upstream_backup(), windows=True)
    # The last file is minute 6: its window began with file 6, the one before it is closed by what file 6 brought.
    ((processed, needed),) = asked(
        work, "select processed, needed from cursors where consumer = 'stage:totals'"
    )
    assert processed == FILES
    assert needed < processed
    assert safe(work).keys() == {"disk-output"}
    assert needed >= 3, "the input of windows that are closed should have been let go"


def test_a_rebuild_finds_windows_that_were_open_before_the_stage_had_the_policy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two files of a window were read under another policy, which does not write down what its state depends on."""
    policies = [(hf.no_sync(), 1), (hf.upstream_backup(), 2), (hf.upstream_backup(), 3)]
    write_files(tmp_path / "in", [table(0)])
    for policy, files in policies:
        work = run(tmp_path, spark, policy, windows=True)
        orphan(work)
        write_files(tmp_path / "in", [table(files)], first=files)
    run(tmp_path, spark, hf.upstream_backup(), windows=True)
    fed = spark.createDataFrame(pa.concat_tables([table(number) for number in range(3)]))
    expected = batch(spark, fed, ["k"], {"s": "sum(v)", "n": "count(1)"})
    closed = last_per_key(spark, tmp_path / "out", ["k", "window_start"]).where("minute(window_start) = 0")
    assert_same_rows(closed.select("k", "s", "n"), expected)


def random_values(df: DataFrame) -> DataFrame:
    return df.selectExpr("k", "cast(rand() * 1000000 as long) as v", "ts")


def test_a_rebuild_that_gives_other_rows_stops_the_flow(spark: SparkSession, tmp_path: Path) -> None:
    """Also where windows that had closed began before what is replayed, and their epochs cannot be compared."""
    for files in (2, FILES + 2):
        home = tmp_path / str(files)
        work = run(home, spark, hf.upstream_backup(), True, files, random_values)
        orphan(work)
        with pytest.raises(hf.FlowError, match="not deterministic") as caught:
            run(home, spark, hf.upstream_backup(), True, files, random_values)
        assert (caught.value.operation, caught.value.stage) == ("rebuild", "totals")
        started = asked(work, "select min(epoch) from attempts where kind = 'rebuild'")
        assert (started[0][0] > 0) == (files > FILES)


def test_files_that_died_with_their_worker_are_read_by_nobody_and_left_to_the_sweeper(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first successor dies before it has made the state anew, the second finishes what it began."""
    work = run(tmp_path, spark, hf.upstream_backup(), windows=True)
    dead = names(work)
    assert dead
    orphan(work)

    def die(*_: object) -> None:
        raise Enough

    with monkeypatch.context() as patched:
        patched.setattr(skips, "commit_rebuild", die)
        with pytest.raises(Enough):
            run(tmp_path, spark, hf.upstream_backup(), windows=True)
    assert names(work) > dead
    assert asked(work, "select count(*) from layers where status = 'live'") == [(0,)]
    run(tmp_path, spark, hf.upstream_backup(), windows=True)
    assert "recovered" in [kind for (kind,) in asked(work, "select kind from events")]
    left = names(work)
    assert left
    assert not left & dead
    named = asked(work, "select runs from layers where status = 'live'")
    assert left == {run["path"] for (runs,) in named for run in json.loads(runs)}


def test_a_replica_gives_back_what_is_lost_without_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    flow = {"survives": "machine", "replica": str(replica)}
    policy = hf.no_sync(("memory", "disk", "replica"))
    work = run(tmp_path, spark, policy, **flow)
    assert safe(work) == {"disk": FILES - 1, "replica": FILES - 1}
    assert names(replica) == names(work) != set()
    shutil.rmtree(work / "data")
    write_files(tmp_path / "in", [table(FILES)], first=FILES)
    run(tmp_path, spark, policy, **flow)
    kinds = [kind for (kind,) in asked(work, "select kind from events")]
    assert "restored" in kinds
    assert "repaired" not in kinds
    fed = spark.createDataFrame(pa.concat_tables([table(number) for number in range(FILES + 1)]))
    expected = batch(spark, fed, ["k"], {"s": "sum(v)", "n": "count(1)"})
    assert_same_rows(last_per_key(spark, tmp_path / "out", ["k"]), expected)


def test_what_a_gap_loses_before_it_was_read_is_skipped_and_said(spark: SparkSession, tmp_path: Path) -> None:
    """A power cut takes segments that were never carried to the disk: their readers go on without them."""
    tables = [table(number) for number in range(3)]
    write_files(tmp_path / "in", tables)

    def flow(send: Callable[[pa.Table, int, str], object]) -> hf.Flow:
        made = hf.Flow("gappy", guarantee="at_most_once", recover=hf.gap())
        source = hf.files(str(tmp_path / "in"), schema=ddl(tables[0].schema), max_files_per_epoch=1)
        rows = made.source("rows", source)
        rows.transform(lambda df: df.select("k")).named("ks").to(hf.foreach(send, idempotent=True))
        return made

    def failing(rows: pa.Table, epoch: int, token: str) -> None:
        if epoch == 1:
            raise ValueError("not today")

    work = tmp_path / "work"
    with pytest.raises(hf.SinkError, match="not today"):
        flow(failing).run(work, until_idle=True, spark=spark)
    unread = asked(work, "select epoch, rows from segments where epoch >= 1 and status = 'live'")
    assert unread
    for path in (work / "data").rglob("*.parquet"):
        path.unlink()
    seen = []
    flow(lambda rows, epoch, token: seen.append(rows.num_rows)).run(work, until_idle=True, spark=spark)
    said = asked(work, "select reason from events where kind = 'skipped' and reason like '%nobody had read'")
    assert said == [
        (f"{len(unread) * ROWS} rows that epochs 1 to {max(unread)[0]} wrote and nobody had read",)
    ]
    assert sum(seen) == (3 - 1 - len(unread)) * ROWS
