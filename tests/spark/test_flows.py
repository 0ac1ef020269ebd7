"""Flows of several stages, sources and sinks; work directories across runs, moves and changes of code."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, read_sink, write_files
from holdfast.core import limits
from holdfast.core.errors import FencedError, StorageError
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.status import status
from holdfast.runtime.progress import Progress

ROWS = pa.table({"k": [i % 7 for i in range(70)], "v": list(range(70))})
FILES = [ROWS.slice(i * 10, 10) for i in range(7)]
SCHEMA = "k long, v long"


def totals_flow(home: Path, **limits: int) -> hf.Flow:
    flow = hf.Flow("totals")
    rows = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, **limits))
    rows.group_by("k").agg(s=hf.sum("v"), n=hf.count()).named("totals").to(hf.parquet(str(home / "out")))
    return flow


def check_totals(spark: SparkSession, home: Path, rows: pa.Table) -> None:
    expected = batch(spark, spark.createDataFrame(rows), ["k"], {"s": "sum(v)", "n": "count(1)"})
    assert_same_rows(last_per_key(spark, home / "out", ["k"]), expected)


def test_a_stage_read_by_two_stages_and_a_union_of_two_sources(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("graph")
    left = flow.source("left", hf.rows(ROWS.slice(0, 30), per_epoch=7))
    right = flow.source("right", hf.rows(ROWS.slice(30), per_epoch=11))
    both = left.union(right.transform(lambda df: df.select("v", "k")))
    totals = (
        both.group_by("k")
        .agg(s=hf.sum("v"), n=hf.count())
        .named("totals")
        .to(hf.parquet(str(tmp_path / "t")))
    )
    totals.as_rows().group_by("n").agg(keys=hf.count()).named("by_count").to(hf.parquet(str(tmp_path / "c")))
    totals.as_rows().transform(lambda df: df.where("k = 3")).group_by("k").agg(top=hf.max("s")).to(
        hf.parquet(str(tmp_path / "m"))
    )
    both.transform(lambda df: df.where("v % 2 = 0")).named("even").to(
        hf.parquet(str(tmp_path / "e"), single_file=True)
    )
    report = flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    assert set(report.stages) == {"totals", "by_count", "aggregate-3", "even"}
    expected = batch(spark, spark.createDataFrame(ROWS), ["k"], {"s": "sum(v)", "n": "count(1)"})
    assert_same_rows(last_per_key(spark, tmp_path / "t", ["k"]), expected)
    assert read_sink(tmp_path / "m")["top"].to_pylist()[-1] == sum(v for v in range(70) if v % 7 == 3)
    counted = last_per_key(spark, tmp_path / "c", ["n"])
    assert counted.where("n = 10").collect()[0]["keys"] == 7
    files = sorted((tmp_path / "e").glob("epoch-*.parquet"))
    even = pa.concat_tables([pq.read_table(file) for file in files])
    assert sorted(even["v"].to_pylist()) == list(range(0, 70, 2))
    assert even.column_names == ["k", "v"]


def test_a_second_run_goes_on_where_the_first_stopped(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES[:3])
    first = totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    write_files(tmp_path / "in", FILES[3:], first=3)
    second = totals_flow(tmp_path, max_files_per_epoch=2).run(tmp_path / "work", until_idle=True, spark=spark)
    assert (first.stages["totals"].epochs, second.stages["totals"].epochs) == (3, 2)
    assert second.generation == first.generation + 1
    assert (first.rows, second.rows) == (30, 40)
    check_totals(spark, tmp_path, ROWS)


def test_a_deposed_process_is_told_so_though_it_stumbles_over_missing_files_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its successor may have merged and removed the files that it still means to read or to carry to the disk."""
    write_files(tmp_path / "in", FILES)

    def depose(progress: Progress) -> None:
        if progress.stage("totals").epoch >= 1 and not (tmp_path / "gone").exists():
            ledger = Ledger(tmp_path / "work")
            holder.take(ledger, "totals", by_force=True)
            ledger.close()
            # At once, however many files tasks are about to write there.
            (tmp_path / "work" / "data").rename(tmp_path / "gone")

    with pytest.raises(FencedError, match="(?i)another process|deposed"):
        totals_flow(tmp_path, max_files_per_epoch=1).run(
            tmp_path / "work", until_idle=True, spark=spark, observe=depose
        )


def test_rows_per_epoch_are_bounded_but_files_are_never_split(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [*FILES[:3], pa.concat_tables(FILES[3:])])
    report = totals_flow(tmp_path, max_rows_per_epoch=25).run(tmp_path / "work", until_idle=True, spark=spark)
    assert [sample.rows for sample in report.stages["totals"].samples] == [20, 10, 40]
    check_totals(spark, tmp_path, ROWS)


def test_a_work_directory_can_be_moved_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES[:4])
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    shutil.move(tmp_path / "work", tmp_path / "elsewhere [moved?] #2")
    write_files(tmp_path / "in", FILES[4:], first=4)
    totals_flow(tmp_path).run(tmp_path / "elsewhere [moved?] #2", until_idle=True, spark=spark)
    check_totals(spark, tmp_path, ROWS)


def test_consumed_segments_and_merged_layers_leave_the_disk(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES * 2)
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    found = status(tmp_path / "work")["stages"]["totals"]
    assert found["safe"] == {"memory": 13, "disk": 13}
    assert found["channel"] == {"epochs": 0, "rows": 0, "bytes": 0}
    assert found["layers"] < 8
    left = [path for path in (tmp_path / "work" / "data").rglob("*") if path.is_file()]
    assert len(left) == found["runs"]
    check_totals(spark, tmp_path, pa.concat_tables([ROWS, ROWS]))


def test_another_key_or_type_under_an_old_name_is_refused_with_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", FILES[:1])
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    flow = hf.Flow("totals")
    rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema=SCHEMA))
    rows.group_by("v").agg(s=hf.sum("k"), n=hf.count()).named("totals").to(hf.parquet(str(tmp_path / "out")))
    with pytest.raises(hf.StateSchemaError, match=r"keys: k bigint -> v bigint"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark)


def test_changed_code_goes_on_with_the_state_it_finds(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES[:1])
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    write_files(tmp_path / "in", FILES[1:2], first=1)
    flow = hf.Flow("totals")
    rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema=SCHEMA))
    doubled = rows.transform(lambda df: df.selectExpr("k", "v * 2 as v"))
    doubled.group_by("k").agg(s=hf.sum("v"), n=hf.count()).named("totals").to(
        hf.parquet(str(tmp_path / "out"))
    )
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    expected = pa.concat_tables(
        [FILES[0], FILES[1].set_column(1, "v", pa.array([v * 2 for v in range(10, 20)]))]
    )
    check_totals(spark, tmp_path, expected)


def test_a_work_directory_of_another_flow_or_without_its_ledger_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", FILES[:1])
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    other = hf.Flow("other")
    other.source("rows", hf.rows(ROWS)).to(hf.parquet(str(tmp_path / "other")))
    with pytest.raises(hf.LedgerError, match="belongs to flow 'totals'"):
        other.run(tmp_path / "work", until_idle=True, spark=spark)
    (tmp_path / "work" / "ledger.db").unlink()
    with pytest.raises(hf.LedgerError, match="its ledger, ledger.db, is gone"):
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)


def test_a_sink_that_is_ahead_of_the_ledger_stops_the_flow(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES[:2])
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    shutil.rmtree(tmp_path / "work")
    with pytest.raises(hf.SinkError, match="ahead of the ledger"):
        totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)


def test_a_sink_whose_output_was_removed_stops_the_flow(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES[:2])
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / ".out.holdfast")
    with pytest.raises(hf.SinkError, match="behind the ledger"):
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)


def test_bad_input_names_the_source_the_file_and_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(hf.InputError, match="cannot list"):
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    write_files(tmp_path / "in", FILES[:1])
    (tmp_path / "in" / "bad.parquet").write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(hf.InputError, match=r"bad\.parquet: it is not a whole Parquet file"):
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    (tmp_path / "in" / "bad.parquet").unlink()
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    check_totals(spark, tmp_path, FILES[0])


def test_plans_that_cannot_work_say_which_columns_there_are(spark: SparkSession, tmp_path: Path) -> None:
    def run(build) -> str:
        flow = hf.Flow("bad")
        build(flow.source("rows", hf.rows(ROWS))).to(hf.parquet(str(tmp_path / "out")))
        with pytest.raises(hf.PlanError) as caught:
            flow.run(tmp_path / "work", until_idle=True, spark=spark)
        return str(caught.value)

    assert "no column 'user'" in run(lambda rows: rows.group_by("user").agg(n=hf.count()))
    assert "The columns are k, v" in run(lambda rows: rows.group_by("k").agg(n=hf.sum("amount")))
    assert "holds a map" in run(
        lambda rows: (
            rows.transform(lambda df: df.selectExpr("map(k, v) as m")).group_by("m").agg(n=hf.count())
        )
    )
    assert "not a DataFrame" in run(lambda rows: rows.transform(lambda df: 3))
    assert "reserved" in run(lambda rows: rows.transform(lambda df: df.withColumnRenamed("k", "__hf_h")))
    assert "has no order here" in run(
        lambda rows: (
            rows.transform(lambda df: df.selectExpr("k", "array(v) as a")).group_by("k").agg(m=hf.max("a"))
        )
    )


def test_history_further_back_than_replay_may_reach_is_folded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_EPOCHS_MAX", 2)
    write_files(tmp_path / "in", FILES)
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    for table in ("plans", "manifests"):
        with closing(sqlite3.connect(tmp_path / "work" / "ledger.db")) as ledger:
            kept = [epoch for (epoch,) in ledger.execute(f"select epoch from {table} order by epoch")]
        assert 2 <= len(kept) <= 5
        assert kept[-1] == 6
    write_files(tmp_path / "in", FILES[:1], first=7)
    totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    check_totals(spark, tmp_path, pa.concat_tables([ROWS, FILES[0]]))


def test_a_plan_of_few_keys_aggregates_before_the_exchange_and_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    big = pa.table({"k": [i % 5 for i in range(60_000)], "v": [1] * 60_000})
    write_files(tmp_path / "in", [big, big])
    totals_flow(tmp_path, max_files_per_epoch=1).run(tmp_path / "work", until_idle=True, spark=spark)
    with closing(sqlite3.connect(tmp_path / "work" / "ledger.db")) as ledger:
        plans = [json.loads(body) for (body,) in ledger.execute("select body from plans order by epoch")]
    assert [plan["aggregate_first"] for plan in plans] == [False, True]
    check_totals(spark, tmp_path, pa.concat_tables([big, big]))


def test_epoch_settings_of_a_borrowed_session_are_put_back(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    spark.conf.set("spark.sql.shuffle.partitions", "77")
    try:
        write_files(tmp_path / "in", FILES[:1])
        totals_flow(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "77"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.shuffle.partitions")


def limited(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """Counts; and where the first row says so, lets this Python worker write no file of more than a kilobyte."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = Path(rows["mark"][0].as_py()).exists() if rows.num_rows else False
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000 if full else hard, hard))
    return rows.select(["k", "v"]), rows.select(["k", "v"])


def test_a_disk_that_takes_no_more_stops_the_flow_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The kernel refuses the write as it would on a full disk; the next run, with room again, goes on."""
    mark = tmp_path / "full"
    table = pa.table({"k": list(range(2_000)), "v": list(range(2_000)), "mark": [str(mark)] * 2_000})

    def run() -> None:
        flow = hf.Flow("full")
        rows = flow.source("rows", hf.rows(table, per_epoch=1_000))
        own = rows.stateful(limited, by=["k"], state="v long", output="k long, v long").named("kept")
        own.to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)

    mark.touch()
    with pytest.raises(StorageError, match="cannot write") as caught:
        run()
    assert (caught.value.stage, caught.value.epoch) == ("kept", 0)
    assert "free space" in str(caught.value)
    mark.unlink()
    run()
    assert sorted(read_sink(tmp_path / "out")["k"].to_pylist()) == list(range(2_000))
