"""The conformance suite on a Kafka topic, and what happens to topics: gaps, partitions, retention, deletion."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from holdfast.clients.kafka import Cluster, NoTopic, Outage
from holdfast.core import limits
from holdfast.core.errors import InputError, PlanError
from holdfast.flow.kafka import kafka as described
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import NOTHING, Limits, Source, Taken
from holdfast.sources.kafka import Kafka
from holdfast.spark.epoch import recognised
from holdfast.spark.session import make_session
from holdfast.testing import Origin, SourceSuite

KAFKA_S_MAX = 30
SCHEMA = "n bigint, text string"
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[SparkSession]:
    session = make_session("tests", "local[2]", {"spark.driver.memory": "2g"})
    yield session
    session.stop()


def source(servers: str, topic: str, **settings: object) -> Kafka:
    if settings.get("payload") != "bytes":
        settings.setdefault("schema", SCHEMA)
    return Kafka("flow", "in", described(servers, topic, **settings))  # type: ignore[arg-type]


def put(servers: str, topic: str, *values: bytes | str | None, partition: int = 0, **about: object) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition, **about)  # type: ignore[arg-type]
    assert producer.flush(KAFKA_S_MAX) == 0


def numbered(*numbers: int) -> list[str]:
    return [json.dumps({"n": n}) for n in numbers]


def looked(of: Source, taken: Taken = NOTHING) -> tuple[list[Item], Taken]:
    items = list(of.next(taken, Limits()))
    known = taken.known | {item.identity for item in items}
    return items, Taken(len(known), items[-1] if items else taken.last, 0, known)


def numbers(spark: SparkSession, of: Source, items: list[Item]) -> list[int]:
    return sorted(row.n for row in of.read(spark, items).select("n").collect())


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + KAFKA_S_MAX
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestTopic(SourceSuite):
    @pytest.fixture(autouse=True)
    def _cluster(self, kafka: str, topic: MakeTopic) -> None:
        self.servers, self.make = kafka, topic

    def origin(self, place: Path) -> Origin:
        name = self.make(partitions=3)

        def put_rows(rows: pa.Table) -> None:
            for number, row in enumerate(rows.to_pylist()):
                put(self.servers, name, json.dumps(row), partition=number % 3)

        return Origin(lambda: source(self.servers, name), put_rows)


def test_an_epoch_is_bounded_and_every_partition_has_its_share(kafka: str, topic: MakeTopic) -> None:
    name = topic(partitions=2)
    put(kafka, name, *numbered(*range(90)), partition=0)
    put(kafka, name, *numbered(*range(10)), partition=1)
    items, taken = looked(source(kafka, name, max_rows_per_epoch=50))
    assert [item.body["slices"] for item in items] == [
        {"0": [0, 45], "1": [0, 5]},
        {"0": [45, 90], "1": [5, 10]},
    ]
    assert looked(source(kafka, name), taken)[0] == []


def test_while_stages_are_busy_the_next_item_grows_instead_of_there_being_more(
    kafka: str, topic: MakeTopic
) -> None:
    name = topic()
    put(kafka, name, *numbered(1))
    busy = replace(NOTHING, unread=limits.KAFKA_ITEMS_UNREAD_MAX)
    assert source(kafka, name).next(busy, Limits()) == []
    (item,) = source(kafka, name).next(NOTHING, Limits())
    put(kafka, name, *numbered(2))
    assert source(kafka, name).next(replace(busy, number=1, last=item), Limits()) == []
    without_rows = replace(busy, number=1, last=replace(item, rows=0))
    assert len(source(kafka, name).next(without_rows, Limits())) == 1


def test_transactions_leave_gaps_and_only_what_is_decided_is_taken(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"test-{uuid.uuid4().hex}"})
    producer.init_transactions(KAFKA_S_MAX)

    def transaction(end: Callable[[], object], *values: int) -> None:
        producer.begin_transaction()
        for value in numbered(*values):
            producer.produce(name, value, partition=0)
        producer.flush(KAFKA_S_MAX)
        end()

    end_of = Cluster(source(kafka, name)._access).bounds
    transaction(producer.commit_transaction, 1, 2)  # offsets 0 to 2: the last is a marker
    transaction(producer.abort_transaction, 3)  # 3 and 4
    wait(lambda: end_of(name).offsets[0][1] == 5)
    items, taken = looked(source(kafka, name))
    assert (items[0].body["slices"], items[0].rows) == ({"0": [0, 5]}, 5)
    assert numbers(spark, source(kafka, name), items) == [1, 2]
    transaction(lambda: None, 4)  # 5, and nobody knows yet
    assert looked(source(kafka, name), taken)[0] == []
    producer.commit_transaction()
    wait(lambda: end_of(name).offsets[0][1] == 7)
    more, _ = looked(source(kafka, name), taken)
    assert numbers(spark, source(kafka, name), more) == [4]
    assert numbers(spark, source(kafka, name), [*items, *more]) == [1, 2, 4]


def test_a_new_partition_is_read_from_its_first_message(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    name = topic()
    put(kafka, name, *numbered(1))
    reader = source(kafka, name, start="latest")
    pinned, taken = looked(reader)
    assert [item.rows for item in pinned] == [0]
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(KAFKA_S_MAX)
    wait(lambda: len(reader._cluster.described(name)[1]) == 2)
    put(kafka, name, *numbered(2), partition=1)
    put(kafka, name, *numbered(3), partition=0)
    items, _ = looked(source(kafka, name, start="latest"), taken)
    assert numbers(spark, reader, items) == [2, 3]


def delete_before(servers: str, topic: str, offset: int) -> None:
    where = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_records([where])[where].result(KAFKA_S_MAX)


def test_what_was_deleted_unread_stops_the_flow_or_is_counted(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    name = topic()
    put(kafka, name, *numbered(0, 1))
    _, taken = looked(source(kafka, name))
    put(kafka, name, *numbered(2, 3, 4, 5))
    delete_before(kafka, name, 4)
    with pytest.raises(InputError, match=r"partition 0, offsets 2 to 3") as raised:
        looked(source(kafka, name), taken)
    assert name in str(raised.value)
    assert 'on_lost="gap"' in str(raised.value.hint)
    gap = source(kafka, name, on_lost="gap")
    items, _ = looked(gap, taken)
    assert items[0].body["lost"] == {"0": [2, 4]}
    assert items[0].body["lost_rows"] == 2
    assert numbers(spark, gap, items) == [4, 5]


def test_what_was_deleted_when_it_was_planned_is_never_read_as_less(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    """An attempt before may have read it: only an item that no committed epoch has read is taken as it is now."""
    name = topic()
    put(kafka, name, *numbered(0, 1, 2, 3))
    gap = source(kafka, name, on_lost="gap")
    (item,), _ = looked(gap)
    delete_before(kafka, name, 3)
    with pytest.raises(Exception, match="holdfast-error") as raised:
        gap.read(spark, [item]).collect()
    error = recognised(raised.value)
    assert isinstance(error, InputError)
    assert "partition 0, offsets 0 to 3" in error.message
    assert error.heals
    found = gap.as_found(item)
    assert (found.identity, found.rows, found.body["lost"]) == (item.identity, 1, {"0": [0, 3]})
    assert gap.as_found(found) == found
    assert numbers(spark, gap, [found]) == [3]
    delete_before(kafka, name, 4)
    assert gap.as_found(found).body["lost"] == {"0": [0, 4]}
    assert source(kafka, name).as_found(item) == item


def test_a_topic_that_was_made_anew_is_another_one(kafka: str, topic: MakeTopic, spark: SparkSession) -> None:
    name = topic()
    put(kafka, name, *numbered(1, 2))
    reader = source(kafka, name)
    items, taken = looked(reader)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([name])[name].result(KAFKA_S_MAX)
    with pytest.raises(InputError, match="there is no topic"):
        wait(lambda: looked(reader, taken) is None)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(KAFKA_S_MAX)
    wait(lambda: answers(reader, name))
    put(kafka, name, *numbered(*range(10)))
    with pytest.raises(InputError, match="made anew"):
        looked(source(kafka, name), taken)
    with pytest.raises(InputError, match="made anew"):
        source(kafka, name).read(spark, items)


def answers(reader: Kafka, topic: str) -> bool:
    try:
        return bool(reader._cluster.bounds(topic))
    except (NoTopic, Outage):
        return False


def test_servers_that_do_not_answer_are_waited_for_and_then_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "KAFKA_ANSWER_MS_MAX", 300)
    reader = source("127.0.0.1:1", "t")
    assert looked(reader)[0] == []
    assert reader.more_to_come()
    monkeypatch.setattr(limits, "KAFKA_OUTAGE_MS_MAX", 0)
    with pytest.raises(InputError, match="do not answer") as raised:
        looked(reader)
    assert raised.value.heals


def test_keys_headers_and_timestamps_come_as_columns(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    name = topic()
    about = {"key": b"k", "timestamp": 1_700_000_000_123, "headers": [("a", b"1"), ("a", None)]}
    put(kafka, name, '{"n": 1}', **about)
    put(kafka, name, '{"n": 2}')
    reader = source(kafka, name, metadata=True, headers=True)
    items, _ = looked(reader)
    first, second = reader.read(spark, items).orderBy("n").toArrow().to_pylist()
    moment = first.pop("_timestamp")
    assert moment.timestamp() == 1_700_000_000.123
    assert first == {
        "n": 1, "text": None, "_key": b"k", "_topic": name, "_partition": 0, "_offset": 0,
        "_headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }  # fmt: skip
    assert (second["_key"], second["_headers"], second["_offset"]) == (None, None, 1)
    assert reader.read(spark, []).schema == reader.schema()


def test_malformed_json_stops_the_flow_or_is_set_aside(
    kafka: str, topic: MakeTopic, spark: SparkSession
) -> None:
    name = topic()
    put(kafka, name, '{"n": 1}', '{"n": "x"}', "no", b'{"text": "\xff"}', None, "")
    reader = source(kafka, name)
    items, _ = looked(reader)
    with pytest.raises(Exception, match="malformed") as raised:
        reader.read(spark, items).collect()
    assert f"{name}/0/" in recognised(raised.value).message
    aside = source(kafka, name, on_error="quarantine")
    assert [row.n for row in aside.read(spark, items).orderBy("n").collect()] == [None, 1]
    found = aside.quarantined(spark, items).orderBy("file").collect()
    assert [(row.file, row.row) for row in found] == [
        (f"{name}/0/1", '{"n": "x"}'),
        (f"{name}/0/2", "no"),
        (f"{name}/0/3", b'{"text": "\xff"}'.hex().upper()),
        (f"{name}/0/5", ""),
    ]
    assert found[0].reason == "n is no bigint: x"
    assert aside.quarantined(spark, []).count() == 0


def test_bytes_and_arrow_payloads_are_read(kafka: str, topic: MakeTopic, spark: SparkSession) -> None:
    raw, arrow = topic(), topic()
    put(kafka, raw, b"\x00\xff", None)
    reader = source(kafka, raw, payload="bytes")
    assert [row.value for row in reader.read(spark, looked(reader)[0]).collect()] == [
        bytearray(b"\x00\xff"),
        None,
    ]
    rows = pa.table({"n": pa.array([1, 2, 3]), "more": ["x"] * 3, "text": ["a", None, "c"]})
    put(kafka, arrow, streamed(rows), streamed(rows.slice(0, 0)), None, streamed(rows.slice(2)))
    reader = source(kafka, arrow, payload="arrow", metadata=True)
    items, taken = looked(reader)
    found = reader.read(spark, items).select("n", "text", "_offset").collect()
    assert [(row.n, row.text, row._offset) for row in found] == [
        (1, "a", 0),
        (2, None, 0),
        (3, "c", 0),
        (3, "c", 3),
    ]
    put(kafka, arrow, b"no stream")
    more, _ = looked(reader, taken)
    with pytest.raises(Exception, match="holdfast-error") as raised:
        reader.read(spark, more).collect()
    assert f"{arrow}/0/4 is no Arrow stream" in recognised(raised.value).message


def streamed(rows: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(buffer.getvalue())


def test_what_will_not_be_read_again_is_told_to_the_consumer_group(kafka: str, topic: MakeTopic) -> None:
    name = topic()
    put(kafka, name, *numbered(1, 2))
    reader = source(kafka, name)
    items, _ = looked(reader)
    reader.commit(items[-1])
    group = Consumer({"bootstrap.servers": kafka, "group.id": "holdfast.flow.in"})
    try:
        wait(lambda: committed(group, name) == 2)
    finally:
        group.close()


def committed(group: Consumer, topic: str) -> int:
    try:
        return int(group.committed([TopicPartition(topic, 0)], timeout=KAFKA_S_MAX)[0].offset)
    except KafkaException:
        return -1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"payload": "avro"}, "not one of json, bytes, arrow"),
        ({"schema": None}, "needs a schema"),
        ({"payload": "bytes", "schema": SCHEMA}, "and no schema"),
        ({"start": "middle"}, "not one of earliest, latest"),
        ({"max_rows_per_epoch": 0}, "at least 1"),
        ({"options": {"group.id": "mine"}}, "not for the flow to set"),
        ({"options": {"error_cb": print}}, "no text, number or boolean"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        described("localhost:9092", "t", **{"schema": SCHEMA, **settings})  # type: ignore[arg-type]


def test_a_column_cannot_have_the_name_of_one_about_the_message() -> None:
    with pytest.raises(PlanError, match="twice"):
        source("localhost:9092", "t", schema="_key string", metadata=True)


def test_secrets_are_in_no_text() -> None:
    reader = described("localhost:9092", "t", schema=SCHEMA, options={"sasl.password": "s3cret"})
    assert "s3cret" not in f"{reader!r} {reader.facts} {reader.reading()}"
