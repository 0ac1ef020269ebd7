"""`format("holdfast")`: what is committed, as DataFrames and as a stream, while the flow goes on."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import write_files
from holdfast.core.errors import FlowError, LedgerError
from holdfast.runtime.data_source import HoldfastSource

READER = "downstream"


class Shop:
    """A flow of which somebody outside reads a channel and a state."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.home, self.spark, self.epochs = home, spark, 0

    @property
    def work(self) -> str:
        return str(self.home / "work")

    def run(self, epochs: int) -> None:
        """So many epochs more, each of the keys 0 to 9 and of one key of its own."""
        tables = [
            pa.table(
                {
                    "k": pa.array([*range(10), 100 + n], pa.int64()),
                    "v": pa.array([float(n)] * 11),
                    "at": pa.array([n * 1_000_000] * 11, pa.timestamp("us", "UTC")),
                }
            )
            for n in range(self.epochs, self.epochs + epochs)
        ]
        write_files(self.home / "in", tables, first=self.epochs)
        self.epochs += epochs
        flow = hf.Flow("shop")
        schema = "k bigint, v double, at timestamp"
        source = hf.files(str(self.home / "in"), schema=schema, max_files_per_epoch=1)
        rows = flow.source("rows", source).transform(lambda df: df.where("k <> 3")).named("clean")
        rows.to(hf.discard())
        rows.group_by("k").agg(n=hf.count(), top=hf.max("v"), last=hf.max("at")).named("totals").to(
            hf.discard()
        )
        flow.run(self.work, spark=self.spark, until_idle=True, tasks=2)

    def read(self, **options: object) -> DataFrame:
        return self.spark.read.format("holdfast").options(**options).load(self.work)

    def streamed(self, checkpoint: str, **options: object) -> list[tuple[int, int]]:
        """What a query that goes on from a checkpoint finds now: keys and epochs."""
        found: list[tuple[int, int]] = []

        def keep(df: DataFrame, _: int) -> None:
            rows = df.toArrow()
            found.extend(zip(rows["k"].to_pylist(), rows["epoch"].to_pylist(), strict=True))

        options = {"channel": "clean", "epochAs": "epoch", **options}
        schema = "k bigint, v double, at timestamp, epoch bigint"
        stream = self.spark.readStream.format("holdfast").schema(schema).options(**options).load(self.work)
        query = stream.writeStream.foreachBatch(keep).option(
            "checkpointLocation", str(self.home / checkpoint)
        )
        running = query.start()
        try:
            running.processAllAvailable()
        finally:
            running.stop()
        return sorted(found)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    hf.register(spark)
    return Shop(tmp_path_factory.mktemp("shop"), spark)


def rows_of(epochs: range) -> list[tuple[int, int]]:
    return sorted((k, n) for n in epochs for k in (*range(10), 100 + n) if k != 3)


def test_a_named_reader_gets_every_epoch_once_and_others_what_is_kept_for_it(shop: Shop) -> None:
    shop.run(2)
    assert shop.streamed("points", reader=READER, startingEpoch="latest") == []
    shop.run(3)
    kept = shop.read(channel="clean", epochAs="epoch")
    assert kept.dtypes == [("k", "bigint"), ("v", "double"), ("at", "timestamp"), ("epoch", "bigint")]
    assert sorted((row.k, row.epoch) for row in kept.collect()) == rows_of(range(2, 5))
    last = shop.read(channel="clean", startingEpoch="4").where("k > 99").collect()
    assert [(row.k, row.v, row.at.second) for row in last] == [(104, 4.0, 4)]
    assert shop.read(channel="clean", startingEpoch="latest").count() == 0
    assert shop.streamed("points", reader=READER) == rows_of(range(2, 5))
    shop.run(1)
    assert shop.streamed("points", reader=READER) == rows_of(range(5, 6))


def test_what_is_trimmed_is_said_with_the_first_epoch_that_is_kept(shop: Shop) -> None:
    first = shop.read(channel="clean", epochAs="epoch").agg({"epoch": "min"}).collect()[0][0]
    with pytest.raises(Exception, match=f"were trimmed: the first that is kept is {first}"):
        shop.read(channel="clean", startingEpoch="0").count()
    with pytest.raises(Exception, match=f"were trimmed: the first that is kept is {first}"):
        shop.streamed("others", startingEpoch="0")


def test_what_a_planned_read_needs_stays_until_it_is_read(shop: Shop) -> None:
    options = {"path": shop.work, "channel": "clean"}
    source = HoldfastSource(options)
    reader = source.reader(source.schema())
    parts = reader.partitions()
    assert parts
    hf.forget_reader(shop.work, READER)
    shop.run(1)  # which sweeps what nobody needs
    rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
    assert rows == 10 * len({part.epoch for part in parts})  # type: ignore[attr-defined]
    with closing(sqlite3.connect(Path(shop.work) / "ledger.db")) as ledger:
        ledger.execute("update pins set until_ms = 0")
        ledger.commit()
    shop.run(1)
    with pytest.raises(Exception, match="was trimmed while it was waiting to be read"):
        list(reader.read(parts[0]))
    with pytest.raises(Exception, match="keeps no rows, so that its columns are not known"):
        shop.read(channel="clean")
    assert shop.read(state="totals").count() > 0
    assert 0 not in pinned(shop.work)  # a pin whose time has passed goes with the next one


def pinned(work: str) -> set[int]:
    with closing(sqlite3.connect(Path(work) / "ledger.db")) as ledger:
        return {until for (until,) in ledger.execute("select until_ms from pins")}


def test_a_state_is_that_of_one_epoch(shop: Shop) -> None:
    newest = shop.epochs - 1
    state = shop.read(state="totals")
    assert state.dtypes == [("k", "bigint"), ("n", "bigint"), ("top", "double"), ("last", "timestamp")]
    found = {row.k: (row.n, row.top) for row in state.collect()}
    keys = [k for k in range(10) if k != 3]
    assert found == {k: (newest + 1, float(newest)) for k in keys} | {
        100 + n: (1, float(n)) for n in range(newest + 1)
    }
    before = shop.read(state="totals", epoch=newest - 1).where("k = 1").collect()
    assert [(row.n, row.top) for row in before] == [(newest, float(newest - 1))]
    assert shop.read(state="totals").groupBy().sum("n").collect()[0][0] == 10 * (newest + 1)
    with pytest.raises(Exception, match=f"there is no epoch 99: the newest epoch is {newest}"):
        shop.read(state="totals", epoch=99).count()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of the options 'channel' and 'state'"),
        ({"channel": "a", "state": "b"}, "one of the options 'channel' and 'state'"),
        ({"channel": "a", "epoch": "1"}, "option 'epoch' is for a state"),
        ({"state": "a", "startingEpoch": "1"}, "option 'startingEpoch' is for channels"),
        ({"channel": "a", "startingEpoch": "soon"}, "option 'startingEpoch' is 'soon'"),
        ({"channel": "a", "chanel": "b"}, "there is no option 'chanel'"),
        ({"channel": "a", "reader": "b"}, "option 'reader' is for streams"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(FlowError, match=says):
        HoldfastSource({"path": "work", **options}).reader(None)  # type: ignore[arg-type]


def test_what_is_not_there_is_said_in_words(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(
        Exception, match=r"there is no stage 'klean' in this flow.*Its stages are clean, totals"
    ):
        shop.read(channel="klean").count()
    with pytest.raises(Exception, match="the stage keeps no state"):
        shop.read(state="clean").count()
    with pytest.raises(Exception, match="is not the work directory of a flow"):
        shop.spark.read.format("holdfast").option("state", "t").load(str(tmp_path)).count()
    with pytest.raises(FlowError, match="a state cannot be read as a stream"):
        HoldfastSource({"path": shop.work, "state": "totals"}).streamReader(None)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="no reader named 'nobody'"):
        hf.forget_reader(shop.work, "nobody")


def test_the_code_of_the_reading_page_runs_as_written(shop: Shop) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "READING.md"
    found: dict[str, DataFrame] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        told = code.replace('"work/"', repr(shop.work)).replace('"epoch", 3', f'"epoch", {shop.epochs - 2}')
        exec(compile(told, str(page), "exec"), found)
    # Every epoch changes the keys 0 to 9 but for 3, and adds one.
    assert found["changed"].count() == 10
    assert found["stream"].isStreaming
