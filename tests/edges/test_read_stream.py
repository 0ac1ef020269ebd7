"""Streams of Structured Streaming: what is logged goes through once, whatever dies and whatever Spark runs again."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.dataset as ds
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
from holdfast.verify.server import connect_server
from streams_flow import flow

COLUMNS = "n bigint, text string"
FLOW = Path(__file__).parents[1] / "streams_flow.py"
SECONDS_MAX = 120


@pytest.fixture(scope="module", autouse=True)
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
                time.sleep(0.02)
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
        schema=COLUMNS,
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


class Speaker:
    """A server that tells no line twice: lines without end to who comes first, and a hundred to every other."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._ended = Event()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        for connection in count(1):
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                for line in count() if connection == 1 else range(100):
                    peer.sendall(f"{connection}-{line}\n".encode())
                    if self._ended.wait(0.01):
                        return
                self._ended.wait()


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    made = Speaker()
    yield made
    made.close()


@contextmanager
def running(home: Path, port: int, *streams: str) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(FLOW.parent), *sys.path])
    with (home / "said.txt").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, str(FLOW), str(home), str(port), *streams],
            env={**os.environ, "PYTHONPATH": path},
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def until(process: subprocess.Popen[bytes], home: Path, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not reached():
        assert process.poll() is None, (home / "said.txt").read_text()[-4000:]
        assert time.monotonic() < deadline, (home / "said.txt").read_text()[-4000:]
        time.sleep(0.3)


def column(directory: Path, name: str) -> list[object]:
    """The values in the Parquet files that are whole."""
    files = [str(path) for path in directory.glob("[!._]*/*.parquet")]
    return ds.dataset(files).to_table([name])[name].to_pylist() if files else []


@pytest.mark.timeout(300)
def test_killed_in_the_middle_what_a_socket_had_logged_is_in_the_sink_once(
    spark: SparkSession, tmp_path: Path, speaker: Speaker
) -> None:
    log, heard = tmp_path / "work" / "streams" / "heard" / "log", tmp_path / "heard"
    with running(tmp_path, speaker.port, "heard") as process:
        until(process, tmp_path, lambda: len(column(heard, "value")) > 50)
    logged = set(column(log, "value")) | set(column(heard, "value"))
    flow(tmp_path, speaker.port, ["heard"]).run(tmp_path / "work", spark=spark, until_idle=True)
    values = column(heard, "value")
    assert len(set(values)) == len(values)
    assert {value for value in values if str(value).startswith("1-")} == logged


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_in_the_middle_what_a_socket_and_a_generator_had_logged_is_in_the_sink_once(
    tmp_path: Path, speaker: Speaker
) -> None:
    log = tmp_path / "work" / "streams" / "heard" / "log"
    heard, counted = tmp_path / "heard", tmp_path / "counted"
    with running(tmp_path, speaker.port, "heard", "counted") as process:
        until(
            process, tmp_path, lambda: len(column(heard, "value")) > 50 and len(column(counted, "value")) > 50
        )
    logged, generated = set(column(log, "value")) | set(column(heard, "value")), column(counted, "value")
    with running(tmp_path, speaker.port, "heard", "counted") as process:
        until(
            process,
            tmp_path,
            lambda: (
                logged < set(column(heard, "value")) and len(column(counted, "value")) > len(generated) + 100
            ),
        )
    values = column(heard, "value")
    assert len(set(values)) == len(values)
    assert logged <= set(values)
    assert {str(value).split("-")[0] for value in values} == {"1", "2"}
    generated = sorted(int(str(value)) for value in column(counted, "value"))
    assert generated == list(range(len(generated)))


def supervised(home: Path, *options: str) -> None:
    """Run the flow of two groups with `holdfast run` until it is idle."""
    arguments = [
        "run",
        str(FLOW.with_name("lines_flow.py")),
        "--work-dir",
        str(home / "work"),
        "--until-idle",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments, *options],
        env={**os.environ, "STREAMS_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_workers_that_only_read_the_log_wait_for_the_one_that_writes_it(tmp_path: Path) -> None:
    for start in (0, 40):
        for number in range(start, start + 40, 10):
            put(tmp_path / "in", f"{number:03d}", range(number, number + 10))
        supervised(tmp_path)
        assert numbers(tmp_path) == list(range(start + 40))
        counted = read_sink(tmp_path / "totals")
        assert sorted(counted["text"].to_pylist()) == sorted(f"t{n}" for n in range(start + 40))


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_connect_server_writes_the_log_too(tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        for start in (0, 10):
            put(tmp_path / "in", str(start), range(start, start + 10))
            supervised(tmp_path, "--master", address)
            assert numbers(tmp_path) == list(range(start + 10))


def test_the_flow_of_the_streams_page_runs_as_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "STREAMS.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    run = hf.Flow.run
    monkeypatch.setattr(hf.Flow, "run", lambda flow, *given, **named: run(flow, *given, spark=spark, **named))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"user": "x", "ms": 5}\n{"user": "x", "ms": 7}\n')
    # Spark's driver was started elsewhere, and takes relative paths from there.
    (tmp_path / "clicks.py").write_text(code.replace('"in/"', repr(str(tmp_path / "in"))))
    runpy.run_path(str(tmp_path / "clicks.py"), run_name="__main__")
    (row,) = read_sink(tmp_path / "totals").to_pylist()
    assert (row["user"], row["n"], row["slowest"]) == ("x", 2, 7)
