"""Flows from Kafka to Kafka: what the page about it shows, killed and run again, and what a reader of the topic sees."""

from __future__ import annotations

import json
import re
import runpy
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.clients.kafka import Access
from holdfast.clients.kafka_messages import read_committed_rows
from holdfast.core import crashpoints
from holdfast.core.errors import LedgerError
from holdfast.ledger.status import status
from holdfast.spark.session import make_session

PAGE = Path(__file__).resolve().parents[2] / "docs" / "KAFKA.md"
KAFKA_S_MAX = 30
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("tests", "local[2]", {"spark.driver.memory": "2g"})
    yield session
    session.stop()


def put(servers: str, topic: str, partitions: int, *rows: dict[str, object]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, row in enumerate(rows):
        producer.produce(topic, json.dumps(row), partition=number % partitions)
    assert producer.flush(KAFKA_S_MAX) == 0


def messages(servers: str, topic: str) -> list[dict[str, object]]:
    found = read_committed_rows(Access(servers), topic, settle_s=5)
    return [json.loads(value) for value in found["value"].to_pylist()]


def test_the_flow_of_the_page_runs_as_written(
    kafka: str, topic: MakeTopic, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, totals = topic(partitions=2), topic(partitions=2)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for shown, real in {
        "localhost:9092": kafka,
        '"orders"': f'"{orders}"',
        '"totals"': f'"{totals}"',
    }.items():
        code = code.replace(shown, real)
    run = hf.Flow.run
    monkeypatch.setattr(hf.Flow, "run", lambda flow, *given, **named: run(flow, *given, spark=spark, **named))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(code)
    rows = [{"user": user, "amount": amount} for user, amount in (("a", 1.5), ("b", 2.0), ("a", 3.0))]
    for times in (1, 2):
        put(kafka, orders, 2, *rows)
        runpy.run_path("shop.py", run_name="__main__")
        newest = {row["user"]: (row["total"], row["n"]) for row in messages(kafka, totals)}
        assert newest == {"a": (4.5 * times, 2 * times), "b": (2.0 * times, times)}
    keys = read_committed_rows(Access(kafka), totals)["_key"].to_pylist()
    assert sorted(keys) == [b"a", b"a", b"b", b"b"]
    assert json.dumps(status(tmp_path / "work")).count("secret") == 0


@pytest.mark.parametrize(
    "point",
    [
        "sink.after_publish",
        pytest.param("sink.after_stage", marks=pytest.mark.slow),
        pytest.param("sink.after_record", marks=pytest.mark.slow),
    ],
)
def test_cut_off_in_the_middle_of_a_transaction_every_row_is_there_once(
    kafka: str,
    topic: MakeTopic,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """And what was deleted before it was read is counted where anybody looks."""
    incoming, outgoing = topic(partitions=2), topic()
    flow = hf.Flow(f"copy-{uuid.uuid4().hex}")
    source = hf.kafka(kafka, incoming, schema="n bigint", max_rows_per_epoch=4, on_lost="gap", metadata=True)
    copied = flow.source("in", source).transform(lambda df: df.selectExpr("n", "_offset as at"))
    copied.named("copied").to(hf.kafka_sink(kafka, outgoing))
    put(kafka, incoming, 2, *({"n": n} for n in range(10)))
    reach, left = crashpoints.reach, [2]

    def cut(reached: str) -> None:
        if reached == point:
            left[0] -= 1
            if left[0] == 0:
                raise LedgerError("cut off", operation="test")
        reach(reached)

    monkeypatch.setattr(crashpoints, "reach", cut)
    with pytest.raises(LedgerError, match="cut off"):
        flow.run(tmp_path / "work", spark=spark, until_idle=True)
    monkeypatch.undo()
    flow.run(tmp_path / "work", spark=spark, until_idle=True)
    assert sorted(int(str(row["n"])) for row in messages(kafka, outgoing)) == list(range(10))
    if point != "sink.after_publish":
        return
    put(kafka, incoming, 2, *({"n": n} for n in range(10, 14)))
    admin, gone = AdminClient({"bootstrap.servers": kafka}), TopicPartition(incoming, 0, 6)
    admin.delete_records([gone])[gone].result(KAFKA_S_MAX)
    flow.run(tmp_path / "work", spark=spark, until_idle=True)
    assert sorted(int(str(row["n"])) for row in messages(kafka, outgoing)) == [*range(10), 11, 12, 13]
    assert status(tmp_path / "work")["sources"]["in"]["lost_rows"] == 1
