"""Dedup lets each id through once a span, whatever the epochs, the tasks and the order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from batch import WAYS, assert_way, read_sink, source
from event_time import MINUTE_US, START_US, UTC_TIME, at, events, ids_of, micros, watermark_of_rows
from holdfast.ledger.status import status


def run(
    spark: SparkSession,
    home: Path,
    table: pa.Table,
    *ids: str,
    per_epoch: int,
    within: str = "10 minutes",
    tasks: int = 3,
    bits: int = 64,
    way: str = "spark",
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    flow = hf.Flow("dedup")
    rows = flow.source("rows", source(home, table, per_epoch, way))
    unique = rows.dedup(*(ids or ("key",)), time="ts", within=within).named("unique")
    unique.to(hf.parquet(str(home / "out"))).late_to(hf.parquet(str(home / "late")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "unique", way)


def accepted(home: Path) -> list[int]:
    return ids_of(home / "out")


def late(home: Path) -> list[int]:
    return ids_of(home / "late")


def keyed(seed: int, rows: int, disorder_us: int) -> pa.Table:
    """Events whose ids repeat, near and far; a few ids are null."""
    table = events(seed, rows, disorder_us=disorder_us, nulls=0.05)
    key = np.random.default_rng(seed + 1).integers(0, rows // 4, rows)
    return table.append_column("key", pa.array(key, mask=key == 0))


def model(
    table: pa.Table, watermark: np.ndarray, per_epoch: int, within_us: int
) -> tuple[set[int], set[int]]:
    """Epoch by epoch, the earliest time of an id first; times are compared with all accepted ones."""
    taken: dict[int | None, list[int]] = {}
    through, late_rows = set(), set()
    time, keys = micros(table["ts"]), table["key"].to_pylist()
    missing = np.asarray(table["ts"].is_null())
    for start in range(0, table.num_rows, per_epoch):
        rows = range(start, min(start + per_epoch, table.num_rows))
        late_rows |= {row for row in rows if missing[row] or time[row] < watermark[row]}
        for row in sorted(set(rows) - late_rows, key=lambda row: time[row]):
            before = taken.setdefault(keys[row], [])
            if all(abs(int(time[row]) - other) > within_us for other in before):
                before.append(int(time[row]))
                through.add(row)
    return through, late_rows


@given(
    seed=st.integers(0, 10_000),
    per_epoch=st.integers(7, 40),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    within=st.sampled_from([5, 10, 45]),
    disorder=st.sampled_from([0, 10, 60]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 14)
def test_any_epochs_tasks_and_order_equal_the_model(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    seed,
    per_epoch,
    tasks,
    bits,
    within,
    disorder,
    way,
) -> None:
    home = tmp_path_factory.getbasetemp() / "dedup"
    table = keyed(seed, 120, disorder * MINUTE_US)
    run(spark, home, table, per_epoch=per_epoch, within=f"{within} minutes", tasks=tasks, bits=bits, way=way)
    watermark = watermark_of_rows(home / "work", "unique", table.num_rows, per_epoch)
    through, late_rows = model(table, watermark, per_epoch, within * MINUTE_US)
    # Which of several rows with one id, time and epoch goes through is settled by a hash: compare what they are.
    identity = list(zip(table["key"].to_pylist(), micros(table["ts"]).tolist(), strict=True))
    assert sorted(map(str, (identity[row] for row in accepted(home)))) == sorted(
        map(str, (identity[row] for row in through))
    )
    assert late(home) == sorted(late_rows)
    aside = status(home / "work")["stages"]["unique"]["aside"]
    assert aside.get("duplicates", 0) == table.num_rows - len(through) - len(late_rows)


def test_in_order_and_within_the_horizon_epochs_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    table = keyed(5, 150, 0)
    for name, per_epoch, tasks in (("a", 150, 1), ("b", 13, 3), ("c", 50, 2)):
        run(spark, tmp_path / name, table, per_epoch=per_epoch, tasks=tasks)
    tables = [read_sink(tmp_path / name / "out").drop(["epoch"]).sort_by("id") for name in "abc"]
    times = [(t["key"].to_pylist(), t["ts"].to_pylist()) for t in tables]
    assert times[0] == times[1] == times[2]


def test_state_is_dropped_by_slices_when_nothing_can_repeat_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = 400
    table = pa.table(
        {
            "id": np.arange(rows),
            "key": np.arange(rows),
            "ts": pa.array(START_US + np.arange(rows) * MINUTE_US).cast(UTC_TIME),
        }
    )
    run(spark, tmp_path, table, per_epoch=20)
    found = status(tmp_path / "work")["stages"]["unique"]
    assert accepted(tmp_path) == list(range(rows))
    # Two horizons are kept, up to a slice and an epoch more.
    assert 20 <= found["state_rows"] <= 20 + 20 + 5, found["state_rows"]


def test_several_columns_null_ids_and_all_kinds_of_columns_go_through_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table(
        {
            "id": pa.array([0, 1, 2, 3, 4], pa.int64()),
            "a": pa.array(["x", None, "x", None, "x"]),
            "b": pa.array([1, None, 1, None, None], pa.int32()),
            "tags": pa.array([["p", None], [], None, ["q"], ["r"]], pa.list_(pa.string())),
            "extra": pa.array([[("k", 1)]] * 5, pa.map_(pa.string(), pa.int64())),
            "ts": at(0, 1, 2, 3, 4),
        }
    )
    run(spark, tmp_path, table, "a", "b", per_epoch=2)
    out = read_sink(tmp_path / "out").sort_by("id")
    assert out["id"].to_pylist() == [0, 1, 4]
    assert out["tags"].to_pylist() == [["p", None], [], ["r"]]
    assert out["extra"].to_pylist() == [[("k", 1)]] * 3
    assert out.column_names[:6] == table.column_names


def test_ids_that_digests_do_not_tell_apart_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1], "tags": pa.array([["p", None], [None, "p"]]), "ts": at(0, 1)})
    with pytest.raises(hf.PlanError, match="'tags', a array<string>, cannot be an id"):
        run(spark, tmp_path, table, "tags", per_epoch=2)


def test_an_id_may_come_again_once_the_span_has_passed(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1, 2, 3], "key": [7] * 4, "ts": at(0, 600, 601, 1202)})
    run(spark, tmp_path, table, per_epoch=1)
    assert accepted(tmp_path) == [0, 2, 3]
    run(spark, tmp_path, table, per_epoch=4)
    assert accepted(tmp_path) == [0, 2, 3]
