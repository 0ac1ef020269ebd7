"""Sources on real files: JSON and CSV give what Parquet gives; what is malformed stops the flow or is set aside."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, last_per_key, read_sink
from holdfast.ledger.status import status

SCHEMA = "id string, user string, amount double, qty int, ts timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)


def orders(first: int, rows: int = 20) -> pa.Table:
    """Orders with what makes text hard: separators, quotes, other scripts, nulls."""
    numbers = range(first, first + rows)
    users = ["plain", 'says "hi", twice', "Zoë", "日本", None, "{brace}", "back\\slash"]
    return pa.table(
        {
            "id": [f"o{n}" for n in numbers],
            "user": [users[n % len(users)] for n in numbers],
            "amount": [None if n % 11 == 0 else n / 4 for n in numbers],
            "qty": pa.array([None if n % 13 == 0 else n % 5 for n in numbers], pa.int32()),
            "ts": pa.array([START + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def lines_of(table: pa.Table) -> str:
    """An object a line; a null is left out in every other one."""
    records = table.to_pylist()
    for number, record in enumerate(records):
        record["ts"] = record["ts"].isoformat()
        if number % 2:
            for name in [name for name, value in record.items() if value is None]:
                del record[name]
    return "".join(
        f"{json.dumps(record, ensure_ascii=number % 3 == 0)}\n" for number, record in enumerate(records)
    )


def drop(directory: Path, name: str, content: pa.Table | str | bytes) -> Path:
    """Put a file into a source directory as a careful producer would, in the format of its name."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{name}"
    if isinstance(content, bytes):
        aside.write_bytes(content)
    elif isinstance(content, str):
        aside.write_text(content, encoding="utf-8")
    elif name.endswith(".parquet"):
        pq.write_table(content, aside)
    elif name.endswith(".json"):
        aside.write_text(lines_of(content), encoding="utf-8")
    else:
        text = content.set_column(4, "ts", content["ts"].cast(pa.string()))
        pc.write_csv(text, aside)
    aside.rename(directory / name)
    return directory / name


def totals(home: Path, kind: str, *, keep: bool = False, **options: object) -> hf.Flow:
    flow = hf.Flow("totals")
    source = hf.files(str(home / f"in-{kind}"), schema=SCHEMA, format=kind, **options)  # type: ignore[arg-type]
    rows = flow.source("orders", source)
    if keep:
        rows.quarantine_to(hf.parquet(str(home / f"aside-{kind}")))
    rows.transform(lambda df: df.where("amount > 1")).group_by("user").agg(
        n=hf.count(), total=hf.sum("amount * qty"), last=hf.max("ts")
    ).named("totals").to(hf.parquet(str(home / f"out-{kind}")))
    return flow


def check(spark: SparkSession, home: Path, kind: str, rows: pa.Table) -> None:
    wanted = spark.createDataFrame(rows).where("amount > 1")
    aggregates = {"n": "count(1)", "total": "sum(amount * qty)", "last": "max(ts)"}
    found = last_per_key(spark, home / f"out-{kind}", ["user"])
    assert_same_rows(found, batch(spark, wanted, ["user"], aggregates))


def run(flow: hf.Flow, spark: SparkSession, work: Path) -> object:
    return flow.run(work, until_idle=True, spark=spark)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_every_format_gives_the_same_rows_over_epochs_and_restarts(
    spark: SparkSession, tmp_path: Path, work: Path, kind: str
) -> None:
    home = tmp_path
    tables = [orders(n * 20) for n in range(5)]
    for number, table in enumerate(tables[:3]):
        drop(home / f"in-{kind}", f"{number} [x] 10%.{kind}", table)
    first = totals(home, kind, max_files_per_epoch=1).run(work, until_idle=True, spark=spark)
    assert [sample.rows for sample in first.stages["totals"].samples] == [20, 20, 20]
    for number, table in enumerate(tables[3:], 3):
        drop(home / f"in-{kind}", f"{number}.{kind}", table)
    second = totals(home, kind, max_rows_per_epoch=45).run(work, until_idle=True, spark=spark)
    assert [sample.rows for sample in second.stages["totals"].samples] == [40]
    check(spark, home, kind, pa.concat_tables(tables))


MALFORMED_CSV = {
    "b1,u,abc,1,2026-01-01 00:00:01": "amount is no double: abc",
    "b2,u,7,2.5,2026-01-01 00:00:01": "qty is no int: 2.5",
    "b3,u,7,99999999999,2026-01-01 00:00:01": "qty is no int: 99999999999",
    "b4,u,7,1": "it does not have 5 columns",
    "b5,u,7,1,2026-01-01 00:00:01,more": "it does not have 5 columns",
    "b6,u,0,x,soon": "qty is no int: x; ts is no timestamp: soon",
    "nonsense": "it does not have 5 columns",
}
MALFORMED_JSON = {
    '{"id":"b1","amount":"abc"}': "amount is no double: abc",
    '{"id":"b2","amount":7,"qty":2.5}': "qty is no int: 2.5",
    '{"id":"b3","amount":7,"qty":99999999999}': "qty is no int: 99999999999",
    '{"id":"b4","amount":7,"qty":"1","ts":"soon"}': "qty is no int: 1; ts is no timestamp: soon",
    '{"id":"b5","amount":7': "it is no JSON object",
    '{"id":"b6","amount":7}{"id":"b7","amount":7}': "it is not exactly one JSON object",
    '{"id":"b8","amount":7},{"id":"b9","amount":7}': "it is not exactly one JSON object",
    '{"id":"b10","amount":7} and more': "it is not exactly one JSON object",
    '[{"id":"b11","amount":7}]': "it is no JSON object",
    "nonsense": "it is no JSON object",
    "null": "it is no JSON object",
}
MALFORMED = {"csv": MALFORMED_CSV, "json": MALFORMED_JSON}


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_malformed_rows_are_set_aside_counted_and_kept_with_the_reason(
    spark: SparkSession, tmp_path: Path, work: Path, kind: str
) -> None:
    path = drop(tmp_path / f"in-{kind}", f"0.{kind}", orders(0))
    lines = path.read_text().splitlines()
    mixed = lines[:5] + list(MALFORMED[kind]) + [""] + lines[5:]
    drop(tmp_path / f"in-{kind}", f"0.{kind}", "\n".join(mixed))
    drop(tmp_path / f"in-{kind}", f"1.{kind}", orders(20))
    flow = totals(tmp_path, kind, keep=True, on_error="quarantine", max_files_per_epoch=1)
    run(flow, spark, work)
    check(spark, tmp_path, kind, orders(0, 40))
    kept = read_sink(tmp_path / f"aside-{kind}").to_pylist()
    assert {row["row"]: row["reason"] for row in kept} == MALFORMED[kind]
    assert {row["file"] for row in kept} == {f"0.{kind}"}
    counted = status(work)["stages"]["orders-quarantine"]["aside"]
    assert counted == {"malformed": len(MALFORMED[kind]), "files_refused": 0}


def test_malformed_rows_are_counted_though_no_sink_keeps_them(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    drop(tmp_path / "in-json", "0.json", lines_of(orders(0)) + "nonsense\n")
    run(totals(tmp_path, "json", on_error="quarantine"), spark, work)
    check(spark, tmp_path, "json", orders(0))
    found = status(work)["stages"]["orders-quarantine"]
    assert found["aside"]["malformed"] == 1
    assert found["channel"]["rows"] == 0


@pytest.mark.parametrize(("kind", "number"), [("csv", 0), ("csv", 4), ("json", 0), ("json", 5)])
def test_a_malformed_row_stops_the_flow_until_the_file_is_mended(
    spark: SparkSession, tmp_path: Path, work: Path, kind: str, number: int
) -> None:
    bad, reason = list(MALFORMED[kind].items())[number]
    drop(tmp_path / f"in-{kind}", f"0.{kind}", orders(0))
    run(totals(tmp_path, kind), spark, work)
    path = drop(tmp_path / f"in-{kind}", f"1.{kind}", orders(20))
    whole = path.read_text()
    path.write_text(f"{whole}{bad}\n")
    drop(tmp_path / f"in-{kind}", f"2.{kind}", orders(40))
    for _ in range(2):
        with pytest.raises(hf.InputError) as caught:
            run(totals(tmp_path, kind), spark, work)
        assert caught.value.stage == "totals"
        said = str(caught.value)
        assert f"source 'orders': a row of 1.{kind} is malformed: {reason}" in said
        assert bad[:100] in said
        assert 'on_error="quarantine"' in said
    check(spark, tmp_path, kind, orders(0))
    path.write_text(whole)
    run(totals(tmp_path, kind), spark, work)
    check(spark, tmp_path, kind, orders(0, 60))


def test_after_a_stop_the_flow_can_go_on_without_the_malformed_rows(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    """The quarantine begins where the flow stood: files that were read before may be gone."""
    old = drop(tmp_path / "in-csv", "0.csv", orders(0))
    run(totals(tmp_path, "csv"), spark, work)
    old.unlink()
    path = drop(tmp_path / "in-csv", "1.csv", orders(20))
    path.write_text(path.read_text() + "nonsense\n")
    with pytest.raises(hf.InputError, match="nonsense"):
        run(totals(tmp_path, "csv"), spark, work)
    run(totals(tmp_path, "csv", keep=True, on_error="quarantine"), spark, work)
    check(spark, tmp_path, "csv", orders(0, 40))
    assert read_sink(tmp_path / "aside-csv")["row"].to_pylist() == ["nonsense"]


def test_a_file_that_was_read_cannot_be_changed_any_more(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    """A new stage reads it from the start, and would read other rows than the first did."""
    path = drop(tmp_path / "in-csv", "0.csv", orders(0))
    run(totals(tmp_path, "csv"), spark, work)
    path.write_text(path.read_text() + "x,y,7,1,2026-01-01 00:00:01\n")
    second = hf.Flow("totals")
    rows = second.source("orders", hf.files(str(tmp_path / "in-csv"), schema=SCHEMA, format="csv"))
    rows.group_by("user").agg(n=hf.count()).named("counts").to(hf.discard())
    with pytest.raises(hf.InputError, match=r"0\.csv has changed since it was discovered"):
        run(second, spark, work)


def test_whole_files_that_cannot_be_read_are_set_aside_with_the_reason(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    drop(tmp_path / "in-parquet", "0.parquet", orders(0))
    drop(tmp_path / "in-parquet", "1.parquet", b"PAR1 this is not Parquet")
    drop(tmp_path / "in-parquet", "2.parquet", orders(20).drop_columns(["qty"]))
    drop(tmp_path / "in-parquet", "3.parquet", orders(20))
    flow = totals(tmp_path, "parquet", keep=True, on_error="quarantine", max_files_per_epoch=1)
    run(flow, spark, work)
    check(spark, tmp_path, "parquet", orders(0, 40))
    kept = {
        row["file"]: (row["row"], row["reason"]) for row in read_sink(tmp_path / "aside-parquet").to_pylist()
    }
    assert set(kept) == {"1.parquet", "2.parquet"}
    assert kept["2.parquet"] == (None, "it has no column 'qty': its columns are id, user, amount, ts")
    found = status(work)
    assert found["stages"]["orders-quarantine"]["aside"] == {"malformed": 0, "files_refused": 2}
    assert found["sources"]["orders"]["refused"]["items"] == 2
    assert "not a whole Parquet file" in found["sources"]["orders"]["refused"]["newest"]["1.parquet"]
    drop(tmp_path / "in-parquet", "1-mended.parquet", orders(40))
    run(flow, spark, work)
    check(spark, tmp_path, "parquet", orders(0, 60))


def test_damage_behind_a_good_footer_names_the_file_and_can_be_mended(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    drop(tmp_path / "in-parquet", "0.parquet", orders(0))
    path = drop(tmp_path / "in-parquet", "1.parquet", orders(20, 2000))
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(b"PAR1" + b"\x55" * (footer - 4) + whole[footer:])
    with pytest.raises(hf.InputError, match=r"1\.parquet.*Bring it back whole") as caught:
        run(totals(tmp_path, "parquet"), spark, work)
    assert caught.value.stage == "totals"
    path.write_bytes(whole)
    run(totals(tmp_path, "parquet"), spark, work)
    check(spark, tmp_path, "parquet", orders(0, 2020))


@pytest.mark.parametrize(
    ("stored", "declared", "wanted"),
    [
        (pa.array([200], pa.uint8()), "smallint", 200),
        (pa.array([60_000], pa.uint16()), "int", 60_000),
        (pa.array([4_000_000_000], pa.uint32()), "bigint", 4_000_000_000),
        (pa.array([2**63 + 5], pa.uint64()), "decimal(20,0)", 2**63 + 5),
        (pa.array([7], pa.int8()), "bigint", 7),
        (pa.array([7], pa.int32()), "double", 7.0),
        (pa.array([1.5], pa.float32()), "double", 1.5),
        (pa.array(["x"]).dictionary_encode(), "string", "x"),
        (pa.array(["x"], pa.large_string()), "string", "x"),
        (pa.array([START], pa.timestamp("ms", "UTC")), "timestamp", START.replace(tzinfo=None)),
        (pa.array([START.replace(tzinfo=None)], pa.timestamp("us")), "timestamp", START.replace(tzinfo=None)),
        (pa.array([[{"a": 1}]]), "array<struct<a: bigint>>", [(1,)]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, bigint>", {"k": 1}),
    ],
)  # fmt: skip
def test_types_that_the_footer_check_lets_through_are_read_unchanged(
    spark: SparkSession, tmp_path: Path, stored: pa.Array, declared: str, wanted: object
) -> None:
    from holdfast.flow.endpoints import files
    from holdfast.sources.contract import NOTHING, Limits
    from holdfast.sources.files import Files

    drop(tmp_path / "in", "0.parquet", pa.table({"c": stored}))
    source = Files("s", files(str(tmp_path / "in"), schema=f"c {declared}"))
    ((found,),) = source.read(spark, source.next(NOTHING, Limits())).collect()
    assert found == wanted


def test_timestamps_as_spark_writes_them_are_read(spark: SparkSession, tmp_path: Path, work: Path) -> None:
    """By default Spark writes INT96, which Arrow takes for nanoseconds."""
    frame = spark.createDataFrame(orders(0))
    frame.coalesce(1).write.parquet(str(tmp_path / "in-parquet"))
    run(totals(tmp_path, "parquet"), spark, work)
    check(spark, tmp_path, "parquet", orders(0))


def test_a_csv_record_may_span_lines_where_the_source_says_so(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    text = 'id;note\r\na;"two\r\nlines, ""quoted"""\r\nb;one\r\n'
    drop(tmp_path / "in", "0.csv", text.encode())
    flow = hf.Flow("notes")
    source = hf.files(
        str(tmp_path / "in"), schema="id string, note string", format="csv", separator=";", multiline=True
    )
    flow.source("notes", source).to(hf.parquet(str(tmp_path / "out")))
    run(flow, spark, work)
    found = {row["id"]: row["note"].replace("\r\n", "\n") for row in read_sink(tmp_path / "out").to_pylist()}
    assert found == {"a": 'two\nlines, "quoted"', "b": "one"}


def test_csv_without_a_header_with_old_line_ends_and_compressed(
    spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    import gzip

    drop(tmp_path / "in", "0.csv", b"1,x\r2,y\r")
    drop(tmp_path / "in", "1.csv.gz", gzip.compress(b"3,z\n4,"))
    drop(tmp_path / "in", "2.csv", b"")
    flow = hf.Flow("plain")
    source = hf.files(str(tmp_path / "in"), schema="n int, s string", format="csv", header=False)
    flow.source("rows", source).to(hf.parquet(str(tmp_path / "out")))
    report = flow.run(work, until_idle=True, spark=spark)
    assert report.rows == 4
    found = {row["n"]: row["s"] for row in read_sink(tmp_path / "out").to_pylist()}
    assert found == {1: "x", 2: "y", 3: "z", 4: None}


def test_generated_rows_are_the_same_whatever_the_epochs_and_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    recipe = {"keys": {"user": 50}, "repeat": 0.1, "disorder": "5 seconds", "seed": 7}

    def flow(name: str, per_epoch: int) -> hf.Flow:
        made = hf.Flow(name)
        source = hf.generate(rows=30_000, per_epoch=per_epoch, **recipe)  # type: ignore[arg-type]
        made.source("events", source).to(hf.parquet(str(tmp_path / name)))
        return made

    flow("one", 30_000).run(tmp_path / "w1", until_idle=True, spark=spark)
    many = flow("many", 7_001).run(tmp_path / "w2", until_idle=True, spark=spark)
    assert [sample.rows for sample in many.stages["rows-1"].samples] == [7_001] * 4 + [1_996]
    one, two = (read_sink(tmp_path / name).drop_columns(["epoch"]) for name in ("one", "many"))
    order = [(name, "ascending") for name in one.column_names]
    assert one.sort_by(order).equals(two.sort_by(order))
    assert one.num_rows == 30_000
    assert 0.08 < 1 - len(set(one["id"].to_pylist())) / 30_000 < 0.12
    assert len(set(one["user"].to_pylist())) == 50
    with pytest.raises(hf.InputError, match="other settings"):
        flow("many", 500).run(tmp_path / "w2", until_idle=True, spark=spark)


def test_a_rate_delays_rows_and_a_run_waits_for_the_last(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("paced")
    source = hf.generate(rows=3_000, per_epoch=500, rate=1_500)
    flow.source("events", source).to(hf.parquet(str(tmp_path / "out")))
    report = flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert report.rows == 3_000
    assert report.seconds >= 2.0
    assert read_sink(tmp_path / "out").num_rows == 3_000


def test_rows_of_a_type_that_spark_lacks_are_refused_with_the_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = hf.Flow("unsigned")
    flow.source("rows", hf.rows(pa.table({"n": pa.array([1], pa.uint32())}))).to(hf.discard())
    with pytest.raises(hf.PlanError, match=r"source 'rows' .* uint32 .* The columns are n uint32"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark)


@pytest.mark.parametrize("per_epoch", [None, 2])
def test_rows_behind_an_empty_chunk_of_a_table_are_read(
    spark: SparkSession, tmp_path: Path, per_epoch: int | None
) -> None:
    """Whoever concatenates tables, one of them empty, has such a table; Spark itself stops there."""
    some, none = pa.table({"k": [1, 2, 3]}), pa.table({"k": pa.array([], pa.int64())})
    flow = hf.Flow("chunks")
    source = hf.rows(pa.concat_tables([none, some, none, none, some, none]), per_epoch=per_epoch)
    flow.source("rows", source).named("kept").to(hf.parquet(str(tmp_path / "out")))
    report = flow.run(tmp_path / "work", until_idle=True, spark=spark)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.k for row in found.collect()) == [1, 1, 2, 2, 3, 3]
    assert report.rows == 6
