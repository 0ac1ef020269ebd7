"""Streams of Structured Streaming: what is logged goes through once, whatever dies and whatever Spark runs again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import read_sink
from holdfast.core.errors import InputError, PlanError, StorageError
from holdfast.flow.explain import explain
from holdfast.flow.planner import plan
from holdfast.sources import stream_log
from holdfast.sources.contract import Source
from holdfast.sources.spark_stream import SparkStream
from holdfast.spark.session import make_session
from holdfast.testing import Origin, SourceSuite

COLUMNS = "n bigint, text string"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("streams", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


def lines(directory: Path, per_batch: int = 1000) -> Callable[[SparkSession], DataFrame]:
    """A stream of the JSON lines in a directory."""
    return lambda spark: (
        spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", per_batch).json(str(directory))
    )


def put(directory: Path, name: str, numbers: range) -> None:
    directory.mkdir(exist_ok=True)
    draft = directory / f".{name}"
    draft.write_text("".join(json.dumps({"n": n, "text": f"t{n}"}) + "\n" for n in numbers))
    draft.rename(directory / f"{name}.json")


def copied(home: Path, per_batch: int = 1000) -> hf.Flow:
    flow = hf.Flow("copied")
    rows = flow.source("lines", hf.read_stream(lines(home / "in", per_batch), schema=COLUMNS))
    rows.transform(lambda df: df).named("copy").to(hf.parquet(str(home / "out")))
    return flow


def numbers(home: Path) -> list[int]:
    return sorted(read_sink(home / "out")["n"].to_pylist())


class TestStreamOfFiles(SourceSuite):
    """The log as a source like any other; the query runs only while rows are put."""

    def origin(self, place: Path) -> Origin:
        made, generations = count(), count(1)

        def source() -> Source:
            described = hf.read_stream(lines(place / "in"), schema=COLUMNS)
            return SparkStream("s", described, place / "streams" / "s", lambda: 1)

        def put_rows(rows: pa.Table) -> None:
            (place / "in").mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
            draft = place / f"draft-{next(made)}"
            draft.write_text(text)
            draft.rename(place / "in" / f"{draft.name}.json")
            running = source()
            assert isinstance(running, SparkStream)
            running.start(SparkSession.active(), next(generations))
            while running.more_to_come():
                pass
            running.stop()

        return Origin(source, put_rows)


def test_a_stream_goes_on_where_it_was_and_its_log_is_let_go(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "in", str(number), range(number * 10, number * 10 + 10))
        copied(tmp_path).run(tmp_path / "work", spark=spark, until_idle=True)
        assert numbers(tmp_path) == list(range(number * 10 + 10))
    log = tmp_path / "work" / "streams" / "lines" / "log"
    assert len([path for path in log.iterdir() if path.name[0] != "."]) == 1


def test_a_batch_that_spark_runs_again_is_in_the_log_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails between the rename that shows a batch and the commit in Spark's own log."""
    for number in range(3):
        put(tmp_path / "in", str(number), range(number * 10, number * 10 + 10))
    shown: list[Path] = []
    real = stream_log.fsync_dir

    def failing(path: Path) -> None:
        real(path)
        if path.name == "log" and any(path.glob("0*")):
            shown.append(path)
            if len(shown) == 2:
                raise StorageError("the disk is gone for a moment", operation="fsync")

    monkeypatch.setattr(stream_log, "fsync_dir", failing)
    with pytest.raises(StorageError, match="for a moment"):
        copied(tmp_path, per_batch=1).run(tmp_path / "work", spark=spark, until_idle=True)
    commits = tmp_path / "work" / "streams" / "lines" / "checkpoint" / "commits"
    assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0"]
    copied(tmp_path, per_batch=1).run(tmp_path / "work", spark=spark, until_idle=True)
    assert numbers(tmp_path) == list(range(30))


def test_a_query_that_fails_stops_the_flow_and_says_why(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "0", range(5))
    flow = hf.Flow("failing")
    failing = hf.read_stream(
        lambda spark: lines(tmp_path / "in")(spark).selectExpr("raise_error('no such luck') n", "text"),
        schema="n void, text string".replace("void", "bigint"),
    )
    flow.source("s", failing).transform(lambda df: df).named("t").to(hf.discard())
    with pytest.raises(PlanError, match="declares n bigint, and the stream has void"):
        flow.run(tmp_path / "work", spark=spark, until_idle=True)
    flow = hf.Flow("failing")
    casting = hf.read_stream(
        lambda spark: lines(tmp_path / "in")(spark).selectExpr("cast(raise_error('no luck') as bigint) n"),
        schema="n bigint",
    )
    flow.source("s", casting).transform(lambda df: df).named("t").to(hf.discard())
    with pytest.raises(InputError, match="stream of source 's' has failed.*no luck") as caught:
        flow.run(tmp_path / "work", spark=spark, until_idle=True)
    assert not caught.value.heals
    assert "resumes=False" in str(caught.value.hint)


def test_what_is_no_stream_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    for make, says in (
        (lambda spark: spark.range(3), "makes no streaming DataFrame"),
        (lambda spark: spark.readStream.format("no-such").load(), "cannot be made"),
    ):
        flow = hf.Flow("none")
        rows = flow.source("s", hf.read_stream(make, schema="id bigint"))
        rows.transform(lambda df: df).named("t").to(hf.discard())
        with pytest.raises(PlanError, match=says):
            flow.run(tmp_path / "work", spark=spark, until_idle=True)


def test_what_is_described_wrongly_is_refused() -> None:
    with pytest.raises(PlanError, match="needs a function"):
        hf.read_stream("topic", schema=COLUMNS)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="finer than a millisecond"):
        hf.read_stream(lines(Path()), schema=COLUMNS, trigger="1500 us")
    with pytest.raises(PlanError, match="at least 1"):
        hf.read_stream(lines(Path()), schema=COLUMNS, max_rows_per_epoch=0)


def test_explain_says_what_a_stream_is(tmp_path: Path) -> None:
    (source,) = explain(plan(copied(tmp_path)))["sources"]
    assert source["kind"] == "stream"
    assert source["rereadable"]
    assert source["trigger"] == "as soon as possible"
