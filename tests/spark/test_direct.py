"""Tasks that read files themselves do what Spark SQL would have done, and leave to it what they cannot do."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import assert_same_rows, assert_way, ddl, digests, last_per_key, plans, read_sink, write_files
from event_time import MINUTE_US, events
from holdfast.core.errors import InputError
from holdfast.spark.hashing import can_hash, hash_columns
from holdfast.spark.keys import hash_sql

_LONG = st.sampled_from(["a" * 511, "€a" * 128, "a" * 513, "€" * 5_000])
_TEXT = st.text(max_size=80) | st.text(alphabet="a€😀\x00", max_size=40) | _LONG
_KINDS: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=80) | _LONG.map(str.encode),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0]),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0]),
    pa.date32(): st.dates(date(1582, 11, 1), date(9999, 1, 1)),
    pa.timestamp("us", "UTC"): st.integers(-(2**51), 2**53).map(
        lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    ),
    pa.decimal128(18, 3): st.decimals(-(10**14), 10**14, places=3).map(Decimal),
}


@given(data=st.data())
@settings(max_examples=settings().max_examples // 10)
def test_hashes_are_sparks_bit_for_bit(spark: SparkSession, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(_KINDS)), min_size=1, max_size=4))
    rows = data.draw(st.integers(1, 30))
    columns = [
        pa.array(
            data.draw(st.lists(st.none() | _KINDS[kind], min_size=rows + 1, max_size=rows + 1)), kind
        ).slice(1)
        for kind in kinds
    ]
    names = [f"c{i}" for i in range(len(kinds))]
    df = spark.createDataFrame(pa.table(columns, names=names))
    assert all(can_hash(field.dataType) for field in df.schema.fields)
    for bits, seed in ((64, None), (8, None), (64, 1)):
        expected = df.select(f.expr(hash_sql(names, bits, seed)).alias("h")).toArrow()["h"]
        assert hash_columns(columns, bits, seed).tolist() == expected.to_pylist()


def test_types_that_hash_otherwise_are_left_to_spark(spark: SparkSession) -> None:
    df = spark.sql(
        "select cast(1.5 as decimal(19, 1)) as dec, array(1) as arr, struct(1) as st, 'x' collate unicode as text, interval 1 day as i"
    )
    assert [field.name for field in df.schema.fields if can_hash(field.dataType)] == []


# Stages that judge event time.
LATE = ("unique", "windows", "sessions")


def build(home: Path, schema: str, name: str) -> hf.Flow:
    """Every operator on the same files; one stage behind another; late rows kept."""
    flow = hf.Flow("ways")
    rows = flow.source("rows", hf.files(str(home / "in"), schema=schema, max_files_per_epoch=1))
    aggregates = {"n": hf.count(), "s": hf.sum("v"), "lo": hf.min("v"), "d": hf.sum("d")}
    aggregates |= {
        "all": hf.collect_list("d", by="id"),
        "top": hf.top_k("v", 2),
        "p": hf.percentile("d", 0.9),
    }
    unique = rows.dedup("id", time="ts", within="5 minutes").named("unique")
    windows = rows.group_by("k").window("ts", sliding=("7 minutes", "3 minutes"), late="5 minutes")
    sessions = rows.group_by("k").window("ts", session="2 minutes", late="5 minutes")
    streams = [
        unique,
        rows.group_by("k").agg(**aggregates).named("totals"),
        windows.agg(**aggregates).named("windows"),
        sessions.agg(**aggregates).named("sessions"),
        unique.group_by("k").agg(**aggregates).named("behind"),
    ]
    for stream in streams:
        stage = flow.names[stream.node]
        stream.to(hf.parquet(str(home / name / stage)))
        if stage in LATE:
            stream.late_to(hf.parquet(str(home / name / f"{stage}-late")))
    return flow


def test_both_ways_give_the_same_rows_and_the_same_digests(spark: SparkSession, tmp_path: Path) -> None:
    table = events(11, 240, disorder_us=30 * MINUTE_US, nulls=0.05)
    again = table.take(pa.array(np.sort(np.random.default_rng(1).integers(0, 240, 300))))
    decimals = [None if i % 7 == 0 else Decimal(i % 50) / 4 for i in range(300)]
    again = again.append_column("d", pa.array(decimals, pa.decimal128(9, 2)))
    write_files(tmp_path / "in", [again.slice(start, 40) for start in range(0, 300, 40)])
    for way in ("spark", "direct"):
        flow = build(tmp_path, ddl(again.schema), way)
        flow.run(tmp_path / f"work-{way}", drain=True, spark=spark, tasks=3, direct=way == "direct")
        for stage in (*LATE, "totals", "behind"):
            assert_way(tmp_path / f"work-{way}", stage, way)
    # How often an epoch without input follows, to close what is left, depends on which layers were merged by then.
    for stage in (*LATE, "totals"):
        left, right = (digests(tmp_path / f"work-{way}", stage)[:8] for way in ("spark", "direct"))
        assert left == right, stage
        assert len(left) == 8, stage
    for name in (*LATE, *(f"{stage}-late" for stage in LATE)):
        found, expected = (
            spark.read.parquet(str(tmp_path / way / name)).drop("epoch") for way in ("direct", "spark")
        )
        assert_same_rows(found, expected)
        assert found.count()
    # Epochs of a stage behind another may be cut elsewhere in each run.
    found, expected = (last_per_key(spark, tmp_path / way / "behind", ["k"]) for way in ("direct", "spark"))
    assert_same_rows(found, expected)


def test_a_union_of_two_sources_read_directly_keeps_their_watermarks_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    fast, slow = events(1, 60), events(2, 60)
    slow = slow.select(["ts", "v", "k", "id"])
    for name, table in (("fast", fast), ("slow", slow)):
        write_files(tmp_path / name, [table.slice(start, 15) for start in range(0, 60, 15)])
    for way in ("spark", "direct"):
        flow = hf.Flow("union")
        sources = [
            flow.source(name, hf.files(str(tmp_path / name), schema=ddl(table.schema), max_files_per_epoch=1))
            for name, table in (("fast", fast), ("slow", slow))
        ]
        windows = sources[0].union(sources[1]).group_by("k").window("ts", tumbling="10 minutes")
        windows.agg(n=hf.count(), s=hf.sum("v")).named("w").to(hf.parquet(str(tmp_path / f"out-{way}")))
        flow.run(tmp_path / way, drain=True, spark=spark, tasks=2, direct=way == "direct")
        assert_way(tmp_path / way, "w", way)
    found, expected = (
        spark.read.parquet(str(tmp_path / f"out-{way}")).drop("epoch") for way in ("direct", "spark")
    )
    assert_same_rows(found, expected)
    left, right = ([p["watermark_us"] for p in plans(tmp_path / way, "w")] for way in ("spark", "direct"))
    assert left == right


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        (pa.table({"K": pa.array([1, 2, 1], pa.int64())}), "k long"),
        (pa.table({"k": pa.array([1.0, 2.0, 1.0])}), "k double"),
        (
            pa.table({"k": pa.array([Decimal(1), Decimal(2), Decimal(1)], pa.decimal128(20, 2))}),
            "k decimal(20,2)",
        ),
    ],
    ids=["other case", "float keys", "wide decimal keys"],
)
def test_files_and_keys_that_only_spark_reads_well_go_through_spark(
    spark: SparkSession, tmp_path: Path, written: pa.Table, declared: str
) -> None:
    write_files(tmp_path / "in", [written])
    flow = hf.Flow("left")
    rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema=declared))
    rows.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert_way(tmp_path / "work", "totals", "spark")
    assert sorted(read_sink(tmp_path / "out")["n"].to_pylist()) == [1, 2]


def test_expressions_code_of_the_user_and_many_tasks_go_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({"k": [1, 2, 1], "v": [1, 2, 3]})
    write_files(tmp_path / "in", [table])
    cases = {
        "expression": (lambda rows: rows.group_by("k").agg(s=hf.sum("v + 0")), 2),
        "code": (lambda rows: rows.transform(lambda df: df).group_by("k").agg(s=hf.sum("v")), 2),
        "tasks": (lambda rows: rows.group_by("k").agg(s=hf.sum("v")), 9),
    }
    for name, (make, tasks) in cases.items():
        flow = hf.Flow(name)
        rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema="k long, v long"))
        make(rows).named("totals").to(hf.parquet(str(tmp_path / f"out-{name}")))
        flow.run(tmp_path / name, until_idle=True, spark=spark, tasks=tasks)
        assert_way(tmp_path / name, "totals", "spark")
        assert sorted(read_sink(tmp_path / f"out-{name}")["s"].to_pylist()) == [2, 4]


def test_a_file_that_is_damaged_inside_is_named_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = 5_000
    write_files(
        tmp_path / "in", [pa.table({"k": np.arange(rows), "v": np.random.default_rng(1).random(rows)})]
    )
    [path] = (tmp_path / "in").iterdir()
    whole, stat = path.read_bytes(), path.stat()

    def run() -> None:
        flow = hf.Flow("damaged")
        source = flow.source("rows", hf.files(str(tmp_path / "in"), schema="k long, v double"))
        source.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark)

    def put(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    start = pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset or 4
    put(whole[:start] + b"\xff" * 64 + whole[start + 64 :])
    with pytest.raises(InputError, match=path.name):
        run()
    put(whole)
    run()
    assert read_sink(tmp_path / "out").num_rows == rows
