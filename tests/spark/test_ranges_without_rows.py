"""What holds no rows is passed over: nothing waits behind it, and no job runs for it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import WAYS, assert_way, plans, read_sink, write_files
from event_time import at
from holdfast.core.errors import InputError
from holdfast.ledger.status import status

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
EMPTY = SCHEMA.empty_table()


def rows(*values: int) -> pa.Table:
    """Rows of a key that is null every other time."""
    return pa.table({"k": [None if v % 2 else v % 3 for v in values], "v": list(values)}, SCHEMA)


def sums(tmp_path: Path, way: str = "direct", **options: object) -> hf.Flow:
    flow = hf.Flow("sums")
    found = flow.source("rows", hf.files(str(tmp_path / "in"), schema="k long, v long", **options))  # type: ignore[arg-type]
    if way == "spark":
        found = found.transform(lambda df: df.filter("v >= 0"))
    found.group_by("k").agg(total=hf.sum("v")).named("sums").to(hf.parquet(str(tmp_path / "out")))
    return flow


def totals(tmp_path: Path) -> dict[int | None, int]:
    """By key, the newest total."""
    found = read_sink(tmp_path / "out").sort_by("epoch").to_pylist()
    return {row["k"]: row["total"] for row in found}


def expected(*tables: pa.Table) -> dict[int | None, int]:
    by_key: dict[int | None, int] = {}
    for row in pa.concat_tables(tables).to_pylist():
        by_key[row["k"]] = by_key.get(row["k"], 0) + row["v"]
    return by_key


def unread(tmp_path: Path) -> list[tuple[str, int]]:
    """Cursors and what is unread before them."""
    found = status(tmp_path / "work")
    items = found["sources"]["rows"]["items"]
    return [
        (c["input"], items - c["processed"])
        for c in found["cursors"]
        if c["input"].startswith("source:") and c["processed"] < items
    ]


@pytest.mark.parametrize("way", WAYS)
def test_empty_files_hold_nothing_back_wherever_they_lie(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    first = [EMPTY, EMPTY, rows(1, 2, 3), EMPTY, rows(4, 5), EMPTY]
    write_files(tmp_path / "in", first)
    flow = sums(tmp_path, way, max_files_per_epoch=1)
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == expected(*first)
    assert unread(tmp_path) == []
    later = [EMPTY, rows(6)]
    write_files(tmp_path / "in", later, first=len(first))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == expected(*first, *later)
    assert unread(tmp_path) == []
    assert [plan["rows"] for plan in plans(tmp_path / "work", "sums")] == [3, 2, 1]
    assert_way(tmp_path / "work", "sums", way)


TEXTS = {
    "csv": (b"k,v\n", b"k,v\n,1\n2,2\n"),
    "csv.gz": (gzip.compress(b"k,v"), gzip.compress(b"k,v\n,1\n2,2\n")),
    "json": (b"", b'{"k":null,"v":1}\n{"k":2,"v":2}\n'),
}


@pytest.mark.parametrize("ending", TEXTS)
def test_a_text_file_without_rows_holds_nothing_back(
    ending: str, spark: SparkSession, tmp_path: Path
) -> None:
    empty, filled = TEXTS[ending]
    (tmp_path / "in").mkdir()
    for number, text in enumerate((empty, filled, empty, filled)):
        (tmp_path / "in" / f"{number}.{ending}").write_bytes(text)
    flow = sums(tmp_path, max_files_per_epoch=1, format=ending.partition(".")[0])
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == {None: 2, 2: 4}
    assert unread(tmp_path) == []


def test_any_number_of_empty_files_is_one_step_and_none_of_them_is_opened(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", [EMPTY])
    for number in range(1, 1_500):
        os.link(tmp_path / "in" / "00000.parquet", tmp_path / "in" / f"{number:05d}.parquet")
    flow = sums(tmp_path)
    report = flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert report.stages["sums"].epochs == 0
    assert unread(tmp_path) == []
    for number in range(1_500, 3_000):
        os.link(tmp_path / "in" / "00000.parquet", tmp_path / "in" / f"{number:05d}.parquet")
    write_files(tmp_path / "in", [rows(1, 2)], first=3_000)
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == expected(rows(1, 2))
    assert unread(tmp_path) == []
    (plan,) = plans(tmp_path / "work", "sums")
    assert plan["rows"] == 2


def test_a_file_without_rows_that_is_written_to_later_is_not_passed_over_in_silence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "0.csv"
    file.write_text("k,v\n")
    from holdfast.runtime import stage_loop

    real = stage_loop.pass_over

    def meanwhile(*args: object) -> None:
        file.write_text("k,v\n1,1\n")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(stage_loop, "pass_over", meanwhile)
    flow = sums(tmp_path, format="csv")
    with pytest.raises(InputError, match="has changed since it was discovered"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
    monkeypatch.undo()
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == {1: 1}


def cursors(tmp_path: Path, consumer: str) -> dict[str, tuple[int, int]]:
    """By input of a consumer, what it has processed and needs."""
    found = status(tmp_path / "work")["cursors"]
    return {c["input"]: (c["processed"], c["needed"]) for c in found if c["consumer"] == consumer}


def test_epochs_without_rows_are_left_behind_by_those_who_read_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Behind a window that rarely closes."""
    minutes = [pa.table({"k": [1, None], "ts": at(600 * i, 600 * i + 60)}) for i in range(8)]
    write_files(tmp_path / "in", minutes)
    flow = hf.Flow("hourly")
    events = flow.source(
        "rows", hf.files(str(tmp_path / "in"), schema="k long, ts timestamp", max_files_per_epoch=1)
    )
    hourly = events.group_by("k").window("ts", tumbling="1 hour").agg(n=hf.count()).named("hourly")
    hourly.group_by("k").window("window_start", tumbling="1 day").agg(hours=hf.count()).named("daily").to(
        hf.parquet(str(tmp_path / "daily"))
    )
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    head = status(tmp_path / "work")["stages"]["hourly"]["epoch"]
    assert cursors(tmp_path, "stage:daily") == {"channel:hourly.out": (head + 1, head + 1)}
    assert len(plans(tmp_path / "work", "daily")) == 1  # the hour that has closed
    flow.run(tmp_path / "work", drain=True, spark=spark)
    # Midnight lies between the two hours.
    assert read_sink(tmp_path / "daily")["hours"].to_pylist() == [1, 1, 1, 1]


@pytest.mark.parametrize("way", WAYS)
def test_an_input_without_rows_waits_for_nobody_and_nobody_for_it(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    flow = hf.Flow("two")
    both = [
        flow.source(name, hf.files(str(tmp_path / name), schema="k long, v long", max_files_per_epoch=1))
        for name in ("one", "other")
    ]
    merged = both[0].union(both[1])
    merged = merged.transform(lambda df: df.filter("v >= 0")) if way == "spark" else merged
    merged.group_by("k").agg(total=hf.sum("v")).named("sums").to(hf.parquet(str(tmp_path / "out")))
    one, other = [rows(1, 2), EMPTY, EMPTY], [EMPTY]
    write_files(tmp_path / "one", one)
    write_files(tmp_path / "other", other)
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == expected(*one)
    write_files(tmp_path / "other", [EMPTY, rows(7), EMPTY], first=1)
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert totals(tmp_path) == expected(*one, rows(7))
    found = cursors(tmp_path, "stage:sums")
    assert {name: processed for name, (processed, _) in found.items()} == {"source:one": 3, "source:other": 4}


def test_a_window_closes_by_what_its_producers_producer_left_empty(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Time goes on in epochs of a join that finds nothing; a dedup behind it has no epoch to say so."""
    for side, stranger in (("left", 100), ("right", 200)):
        matched = pa.table({"k": [1, 2], "ts": at(300, 600)})
        strangers = [pa.table({"k": [stranger + i], "ts": at(1_800 * i)}) for i in range(1, 4)]
        write_files(tmp_path / side, [matched, *strangers])
    flow = hf.Flow("far")
    left, right = (
        flow.source(
            side, hf.files(str(tmp_path / side), schema="k long, ts timestamp", max_files_per_epoch=1)
        )
        for side in ("left", "right")
    )
    found = left.join(right, on="k", time=("ts", "ts"), within=("-10 minutes", "10 minutes")).named("found")
    unique = found.dedup("k", time="ts", within="1 hour").named("unique")
    counted = unique.group_by("k").window("ts", tumbling="10 minutes")
    counted.agg(n=hf.count()).named("counted").to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert read_sink(tmp_path / "out")["k"].to_pylist() == [1]
