"""Inputs and places at the edge of what people have: one key, deep nesting, thousands of files, moved directories, full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, write_files
from holdfast.runtime.progress import Report

COUNTED = {"n": "count(1)", "total": "sum(v)", "least": "min(s)", "greatest": "max(s)"}


def counted(home: Path, out: Path, **options: int) -> hf.Flow:
    flow = hf.Flow("edge")
    rows = flow.source("rows", hf.files(home / "in", schema="k string, s string, v bigint", **options))
    rows.group_by("k").agg(n=hf.count(), total=hf.sum("v"), least=hf.min("s"), greatest=hf.max("s")).named(
        "counted"
    ).to(hf.parquet(out))
    return flow


def run(flow: hf.Flow, spark: SparkSession, work: Path) -> Report:
    return flow.run(work, until_idle=True, spark=spark, tasks=2)


def check(spark: SparkSession, home: Path, out: Path) -> None:
    wanted = batch(spark, spark.read.parquet(str(home / "in")), ["k"], COUNTED)
    assert_same_rows(last_per_key(spark, out, ["k"]), wanted)


def numbered(first: int, rows: int, keys: int = 7) -> pa.Table:
    numbers = pa.array(range(first, first + rows), pa.int64())
    key = pc.cast(pc.subtract(numbers, pc.multiply(pc.divide(numbers, keys), keys)), pa.string())
    return pa.table({"k": key, "s": pc.cast(numbers, pa.string()), "v": numbers})


def test_all_rows_of_one_key_are_one_group(spark: SparkSession, tmp_path: Path, work: Path) -> None:
    write_files(tmp_path / "in", [numbered(0, 150_000, keys=1), numbered(150_000, 50_000, keys=1)])
    run(counted(tmp_path, tmp_path / "out", max_files_per_epoch=1), spark, work)
    check(spark, tmp_path, tmp_path / "out")


@pytest.mark.parametrize("prefix", ["1 = 1", None])
def test_values_of_ten_megabytes_are_keys_and_extremes_like_any_other(
    spark: SparkSession, tmp_path: Path, work: Path, prefix: str | None
) -> None:
    big = [letter * 10_000_000 for letter in "abca"]
    table = pa.table({"k": big, "s": big, "v": pa.array(range(4), pa.int64())})
    write_files(tmp_path / "in", [table.slice(0, 3), table.slice(3)])
    flow = hf.Flow("edge")
    rows = flow.source("rows", hf.files(tmp_path / "in", schema="k string, s string, v bigint"))
    rows = rows.where(prefix) if prefix else rows
    grouped = rows.group_by("k").agg(n=hf.count(), total=hf.sum("v"), least=hf.min("s"), greatest=hf.max("s"))
    grouped.named("counted").to(hf.parquet(tmp_path / "out"))
    run(flow, spark, work)
    found = ds.dataset(tmp_path / "out", format="parquet").to_table().sort_by("k")
    assert found["k"].to_pylist() == found["least"].to_pylist() == found["greatest"].to_pylist() == big[:3]
    assert found["n"].to_pylist() == [2, 1, 1]
    assert found["total"].to_pylist() == [3, 1, 2]


def test_deeply_nested_columns_pass_a_state_as_they_are(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    kind: pa.DataType = pa.int64()
    for level in range(8):
        kind = pa.struct([("a", pa.list_(kind)), (f"b{level}", pa.struct([("c", pa.float64())]))])

    def value(depth: int, n: int) -> object:
        if depth < 0:
            return n
        inner = [] if n % 3 == 0 else [value(depth - 1, n), None]
        return None if n % 5 == 0 else {"a": inner, f"b{depth}": {"c": n / 4}}

    table = pa.table(
        {"id": [f"i{n}" for n in range(40)], "deep": pa.array([value(7, n) for n in range(40)], kind)}
    )
    write_files(tmp_path / "in", [table, table.slice(10, 5)])
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    flow = hf.Flow("nested")
    rows = flow.source("rows", hf.files(tmp_path / "in", schema=ddl, max_files_per_epoch=1))
    rows.group_by("id").agg(deep=hf.last("deep", by="id")).named("newest").to(hf.parquet(tmp_path / "out"))
    run(flow, spark, work)
    found = ds.dataset(tmp_path / "out", format="parquet").to_table(columns=["id", "deep"])
    assert {row["id"]: row["deep"] for row in found.to_pylist()} == dict(
        zip(table["id"].to_pylist(), table["deep"].to_pylist(), strict=True)
    )
    assert found.num_rows == 45


def test_five_thousand_files_of_one_row_are_read_in_few_epochs(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    all_rows = numbered(0, 5_000)
    write_files(tmp_path / "in", [all_rows.slice(n, 1) for n in range(5_000)])
    report = run(counted(tmp_path, tmp_path / "out"), spark, work)
    check(spark, tmp_path, tmp_path / "out")
    assert report.stages["counted"].epochs <= 10


def test_a_file_of_three_million_rows_is_read_whole(spark: SparkSession, tmp_path: Path, work: Path) -> None:
    write_files(tmp_path / "in", [numbered(0, 3_000_000, keys=1_000)])
    run(counted(tmp_path, tmp_path / "out"), spark, work)
    check(spark, tmp_path, tmp_path / "out")


def test_a_work_directory_that_is_moved_or_linked_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    write_files(tmp_path / "in", [numbered(0, 50)])
    flow = counted(tmp_path, tmp_path / "out")
    run(flow, spark, work)
    moved = tmp_path / "elsewhere" / "work"
    moved.parent.mkdir()
    work.rename(moved)
    write_files(tmp_path / "in", [numbered(50, 50)], first=1)
    run(flow, spark, moved)
    work.symlink_to(moved)
    write_files(tmp_path / "in", [numbered(100, 50)], first=2)
    run(flow, spark, work)
    check(spark, tmp_path, tmp_path / "out")


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tempfile.gettempdir()).st_dev,
    reason="no other file system to write to",
)
def test_a_target_on_another_file_system_gets_the_same_rows(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        write_files(tmp_path / "in", [numbered(0, 50), numbered(50, 50)])
        run(counted(tmp_path, elsewhere / "out", max_files_per_epoch=1), spark, work)
        check(spark, tmp_path, elsewhere / "out")
    finally:
        shutil.rmtree(elsewhere)


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """A file system for a test, as only a user who may mount one can have it."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(ballast: Path) -> None:
    """Leave not a block of the file system free."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(ballast.parent).free == 0


def test_a_disk_that_is_full_under_the_ledger_stops_the_flow_until_there_is_space(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The disk is full before the run begins: the first that cannot be written is the ledger's write-ahead log."""
    write_files(tmp_path / "in", [numbered(0, 50)])
    flow = counted(tmp_path, tmp_path / "out")
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as small:
        run(flow, spark, small / "work")
        write_files(tmp_path / "in", [numbered(50, 50)], first=1)
        fill(small / "ballast")
        with pytest.raises(hf.LedgerError, match="The disk is full"):
            run(flow, spark, small / "work")
        (small / "ballast").unlink()
        run(flow, spark, small / "work")
        check(spark, tmp_path, tmp_path / "out")


def test_a_target_that_may_only_be_read_is_named_and_gets_its_rows_later(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    write_files(tmp_path / "in", [numbered(0, 50)])
    target = tmp_path / "target"
    flow = counted(tmp_path, target / "out")
    with mounted(target, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        run(flow, spark, work)
        write_files(tmp_path / "in", [numbered(50, 50)], first=1)
        subprocess.run(["mount", "-o", "remount,ro", str(target)], check=True)
        with pytest.raises(hf.HoldfastError, match="may not be written to") as told:
            run(flow, spark, work)
        assert str(target) in str(told.value)
        subprocess.run(["mount", "-o", "remount,rw", str(target)], check=True)
        run(flow, spark, work)
        check(spark, tmp_path, target / "out")


def test_a_clock_that_is_set_back_changes_no_row(
    spark: SparkSession, tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day between two runs, and an hour while one is under way."""
    write_files(tmp_path / "in", [numbered(0, 50), numbered(50, 50)])
    flow = counted(tmp_path, tmp_path / "out", max_files_per_epoch=1)
    run(flow, spark, work)
    now_ns, calls = time.time_ns, iter(range(1_000_000))
    back_ns = [86_400 * 10**9, 90_000 * 10**9]
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - back_ns[next(calls) > 20])
    write_files(tmp_path / "in", [numbered(n, 50) for n in (100, 150, 200)], first=2)
    report = run(flow, spark, work)
    assert report.stages["counted"].epochs == 3
    check(spark, tmp_path, tmp_path / "out")
