"""A substream ends when all its rows are through all stages and sinks, and not before; what waits for it is exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import assert_same_rows, batch, read_sink, write_files
from event_time import MINUTE_US, events, ids_of
from holdfast.core.errors import FlowError, PlanError, StateSchemaError
from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.status import status

TRACKERS = ("xor", "punctuation")


def substreams(work: Path) -> dict[str, bool]:
    """By label, whether it has ended."""
    table = schema.substreams
    with reading(work) as tx:
        return {row.label: row.ended_ms is not None for row in tx.execute(sa.select(table))}


def rows_by_label(sink: Path) -> Counter[str]:
    files = sorted(sink.rglob("*.parquet")) if sink.exists() else []
    found = [pq.read_table(file, columns=["substream"], partitioning=None)["substream"] for file in files]
    return Counter(label for column in found for label in column.to_pylist())


class Witness:
    """Looks at ledger and sinks after every commit: what was in the sinks when a label was first seen to have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Path, sinks: list[Path]) -> None:
        self.work, self.sinks = work, sinks
        self.seen: dict[str, list[int]] = {}
        made = Ledger.__init__

        def watched(ledger: Ledger, *arguments: object) -> None:
            made(ledger, *arguments)  # type: ignore[arg-type]
            ledger.on_commit(self.look)

        monkeypatch.setattr(Ledger, "__init__", watched)

    def look(self) -> None:
        ended = {label for label, over in substreams(self.work).items() if over} - self.seen.keys()
        if ended:
            counts = [rows_by_label(sink) for sink in self.sinks]
            self.seen |= {label: [count[label] for count in counts] for label in ended}

    def check(self) -> None:
        """No row of a label came to any sink after its end."""
        counts = [rows_by_label(sink) for sink in self.sinks]
        assert self.seen == {label: [count[label] for count in counts] for label in self.seen}


def hourly(home: Path, table: pa.Table, tracker: str = "xor") -> hf.Flow:
    """Windows as labels, over two stages and four sinks."""
    flow = hf.Flow("hourly", tracker=tracker)
    rows = flow.source("rows", hf.rows(table, per_epoch=150))
    labelled = rows.substream(time="ts", every="1 hour", late="5 minutes").named("hours")
    labelled.to(hf.parquet(str(home / "all"))).late_to(hf.parquet(str(home / "late")))
    labelled.transform(lambda df: df.where("v > 0")).named("positive").to(hf.parquet(str(home / "positive")))
    totals = labelled.group_by("substream", "k", emit="end").agg(n=hf.count(), s=hf.sum("v")).named("totals")
    totals.to(hf.parquet(str(home / "totals")))
    tops = totals.transform(lambda df: df.where("n > 5")).named("tops")
    tops.to(hf.parquet(str(home / "tops")))
    return flow


@pytest.mark.parametrize("tracker", TRACKERS)
def test_no_hour_ends_before_all_its_rows_are_in_all_sinks_and_every_key_leaves_once_then(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    table = events(3, 600, disorder_us=15 * MINUTE_US, nulls=0.02)
    names = ["all", "positive", "totals", "tops"]
    witness = Witness(monkeypatch, tmp_path / "work", [tmp_path / name for name in names])
    flow = hourly(tmp_path, table, tracker)
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    before = substreams(tmp_path / "work")
    assert list(before.values()).count(False) == 1  # the watermark has not passed the last
    assert ids_of(tmp_path / "late")
    flow.run(tmp_path / "work", until_idle=True, drain=True, spark=spark, tasks=2)
    assert set(substreams(tmp_path / "work").values()) == {True}
    assert witness.seen.keys() == substreams(tmp_path / "work").keys()
    witness.check()
    through = spark.read.parquet(str(tmp_path / "all")).drop("epoch")
    expected = batch(spark, through, ["substream", "k"], {"n": "count(1)", "s": "sum(v)"})
    assert_same_rows(spark.read.parquet(str(tmp_path / "totals")).drop("epoch"), expected)
    assert sorted([*ids_of(tmp_path / "all"), *ids_of(tmp_path / "late")]) == list(range(600))
    hours = through.selectExpr(
        "date_format(to_utc_timestamp(ts, current_timezone()), 'yyyy-MM-dd HH') h", "substream"
    )
    assert hours.where("replace(h, ' ', 'T') || ':00:00Z' <> substream").count() == 0
    assert status(tmp_path / "work")["stages"]["totals"]["state_rows"] == 0


def largest(state: pa.Table, context: hf.Context) -> pa.Table:
    """Of each batch, one row with what its keys came to."""
    found = state.group_by("substream").aggregate([("n", "sum"), ("s", "max")])
    return pa.table({"batch": found["substream"], "n": found["n_sum"], "best": found["s_max"]})


def count_up(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, None]:
    fresh = rows.group_by(["substream", "k"]).aggregate([("id", "count"), ("v", "sum")])
    fresh = fresh.select(["substream", "k", "id_count", "v_sum"]).rename_columns(state.schema.names)
    both = pa.concat_tables([state, fresh.cast(state.schema)]).group_by(["substream", "k"])
    new = both.aggregate([("n", "sum"), ("s", "sum")]).select(["substream", "k", "n_sum", "s_sum"])
    return new.rename_columns(state.schema.names), None


def batches(*numbers: int, last: bool, start: int = 0) -> pa.Table:
    """Forty rows of each batch, the last of which may say so; every fifth row has no batch."""
    ids = range(start, start + 40 * len(numbers))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "batch": pa.array([None if i % 5 == 4 else f"b{numbers[i % len(numbers)]}" for i in ids]),
            "k": pa.array([i % 7 for i in ids], pa.int64()),
            "v": pa.array([i % 11 for i in ids], pa.int64()),
            "is_last": pa.array([last and i >= start + 40 * len(numbers) - 10 for i in ids]),
        }
    )


@pytest.mark.parametrize("tracker", ["xor", pytest.param("punctuation", marks=pytest.mark.slow)])
def test_a_batch_is_closed_by_its_last_row_and_what_comes_after_is_late(
    spark: SparkSession, tmp_path: Path, tracker: str
) -> None:
    files = [
        batches(1, 2, last=False),
        batches(1, last=True, start=100),  # ends batch 1
        batches(2, 1, last=False, start=200),  # of which batch 1 is late
        batches(2, 3, last=True, start=300),
    ]
    write_files(tmp_path / "in", files)
    flow = hf.Flow("batches", tracker=tracker)
    schema_text = "id long, batch string, k long, v long, is_last boolean"
    rows = flow.source("in", hf.files(str(tmp_path / "in"), schema=schema_text, max_files_per_epoch=1))
    labelled = rows.substream(by="batch", closed_when="is_last").named("labels")
    labelled.to(hf.parquet(str(tmp_path / "all"))).late_to(hf.parquet(str(tmp_path / "late")))
    ended = labelled.stateful(
        count_up,
        by=["substream", "k"],
        state="n long, s long",
        output="batch string, n long, best long",
        on_end=largest,
    ).named("ended")
    ended.to(hf.parquet(str(tmp_path / "ended")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    table = pa.concat_tables(files)
    after = pc.and_(pc.equal(table["batch"], "b1"), pc.greater_equal(table["id"], 200))
    late = table.filter(pc.or_(pc.fill_null(after, False), pc.is_null(table["batch"])))
    assert ids_of(tmp_path / "late") == sorted(late["id"].to_pylist())
    assert substreams(tmp_path / "work") == {"b1": True, "b2": True, "b3": True}
    counts = status(tmp_path / "work")["stages"]["labels"]["aside"]
    assert counts["no_label"] == table["batch"].null_count
    assert counts["late"] + counts["no_label"] == late.num_rows
    through = spark.read.parquet(str(tmp_path / "all")).drop("epoch")
    by_key = batch(spark, through, ["substream", "k"], {"n": "count(1)", "s": "sum(v)"})
    expected = batch(spark, by_key, ["substream"], {"n": "sum(n)", "best": "max(s)"})
    found = spark.read.parquet(str(tmp_path / "ended")).drop("epoch")
    assert_same_rows(found, expected.withColumnRenamed("substream", "batch"))
    assert status(tmp_path / "work")["stages"]["ended"]["state_rows"] == 0


def test_windows_of_a_substream_hold_it_until_they_close(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = events(5, 400, disorder_us=2 * MINUTE_US, span_us=100 * MINUTE_US)
    for tracker in TRACKERS:
        home = tmp_path / tracker
        with monkeypatch.context() as patch:
            witness = Witness(patch, home / "work", [home / "windows"])
            flow = hf.Flow("windows", tracker=tracker)
            rows = flow.source("rows", hf.rows(table, per_epoch=100))
            labelled = rows.substream(time="ts", every="30 minutes", late="2 minutes").dedup(
                "id", time="ts", within="10 minutes"
            )
            windows = labelled.group_by("substream").window(
                "ts", sliding=("20 minutes", "10 minutes"), late="15 minutes"
            )
            windows.agg(n=hf.count()).named("windows").to(hf.parquet(str(home / "windows")))
            flow.run(home / "work", until_idle=True, spark=spark, tasks=2)
            assert False in substreams(home / "work").values()
            flow.run(home / "work", until_idle=True, drain=True, spark=spark, tasks=2)
        assert set(substreams(home / "work").values()) == {True}
        assert witness.seen.keys() == substreams(home / "work").keys()
        witness.check()


def test_two_stages_that_label_alike_have_both_to_close(spark: SparkSession, tmp_path: Path) -> None:
    """One of them never has a row of the last hours."""
    one, two = events(7, 300), events(8, 100, span_us=30 * MINUTE_US)
    flow = hf.Flow("both")
    streams = [
        flow.source(name, hf.rows(table, per_epoch=100))
        .substream(time="ts", every="1 hour")
        .named(f"by-{name}")
        for name, table in (("one", one), ("two", two))
    ]
    both = streams[0].union(streams[1]).group_by("substream", emit="end").agg(n=hf.count()).named("n")
    both.to(hf.parquet(str(tmp_path / "n")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert set(substreams(tmp_path / "work").values()) == {False}
    flow.run(tmp_path / "work", drain=True, spark=spark, tasks=1)
    assert set(substreams(tmp_path / "work").values()) == {True}
    found = read_sink(tmp_path / "n")
    labels = found["substream"].to_pylist()
    assert len(labels) == len(set(labels)) == 4
    assert sum(found["n"].to_pylist()) == 400 - status(tmp_path / "work")["stages"]["by-two"]["aside"].get(
        "late", 0
    ) - (status(tmp_path / "work")["stages"]["by-one"]["aside"].get("late", 0))


def test_a_stage_cannot_invent_a_label(spark: SparkSession, tmp_path: Path) -> None:
    def upper(df: DataFrame) -> DataFrame:
        return df.selectExpr("id", "upper(substream) substream")

    flow = hf.Flow("invented")
    rows = flow.source("in", hf.rows(batches(1, last=False)))
    rows.substream(by="coalesce(batch, 'none')").transform(upper).named("loud").to(hf.discard())
    with pytest.raises(FlowError, match="gives out rows of substream 'B1', which it has not read"):
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)


def planned(spark: SparkSession, home: Path, build: object, tracker: str = "xor") -> None:
    flow = hf.Flow("refused", tracker=tracker)
    rows = flow.source("rows", hf.rows(events(1, 10)))
    build(rows).to(hf.discard())  # type: ignore[operator]
    flow.run(home / "work", until_idle=True, spark=spark, tasks=1)


def test_what_could_not_say_which_labels_it_holds_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def label(rows: hf.flow.flow.Stream) -> hf.flow.flow.Stream:  # type: ignore[name-defined]
        return rows.substream(time="ts", every="1 hour")

    refused = {
        "sessions": lambda r: (
            label(r).group_by("substream").window("ts", session="1 minute").agg(n=hf.count())
        ),
        "rows of a join": lambda r: label(r).join(
            r, on="k", time=("ts", "ts"), within=("0 seconds", "1 minute")
        ),
        "would give out rows of a join": lambda r: label(r).join(
            label(r), on=["k", "substream"], time=("ts", "ts"), within=("0 s", "1 minute"), how="semi"
        ),
        "keys that expire": lambda r: label(r).stateful(
            count_up,
            by=["substream", "k"],
            state="n long",
            output="substream string",
            time="ts",
            expire_after="1 hour",
        ),
        "waits for the end of substreams, and reads none": lambda r: (
            r.transform(lambda df: df.selectExpr("*", "'x' substream"))
            .group_by("substream", emit="end")
            .agg(n=hf.count())
        ),
        "there is a column 'substream' already": lambda r: label(label(r)),
        "labels rows that had a label before": lambda r: label(
            label(r).transform(lambda df: df.drop("substream"))
        ),
        "by='nothing' cannot be computed": lambda r: r.substream(by="nothing"),
        "closed_when='v' is a bigint": lambda r: r.substream(by="k", closed_when="v"),
    }
    for why, build in refused.items():
        with pytest.raises(PlanError, match=why):
            planned(spark, tmp_path, build)


def test_what_is_open_keeps_the_flow_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    def flow(sinks: int, tracker: str = "xor") -> hf.Flow:
        made = hf.Flow("kept", tracker=tracker)
        stream = (
            made.source("in", hf.rows(batches(1, last=False)))
            .substream(by="coalesce(batch, 'none')")
            .named("in")
        )
        for number in range(sinks):
            stream = stream.to(hf.parquet(str(tmp_path / f"out-{number}")))
        return made

    flow(1).run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    with pytest.raises(StateSchemaError, match="have changed while 2 are open"):
        flow(2).run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    flow(1).run(tmp_path / "work", drain=True, spark=spark, tasks=1)
    with pytest.raises(StateSchemaError, match="or their tracker"):
        flow(1, "punctuation").run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
