"""The conformance suite on a Kafka topic, and what only a transaction of Kafka's can go through."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.clients.kafka import Access, Cluster
from holdfast.clients.kafka_messages import read_committed_rows
from holdfast.core.errors import FencedError, PlanError, SinkError
from holdfast.flow.kafka import kafka_sink
from holdfast.sinks.kafka import KafkaSink
from holdfast.testing import SinkSuite, Target, epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, feed, publish_after, record, segments

KAFKA_S_MAX = 30
SETTLE_S = 2  # a commit is seen some moments after it was confirmed
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def records(kafka: str) -> Iterator[str]:
    """A records topic of the module's own: transactions that tests leave open hold up nobody else."""
    name, admin = f"test-records-{uuid.uuid4().hex}", AdminClient({"bootstrap.servers": kafka})
    yield name
    admin.delete_topics([name])[name].result(KAFKA_S_MAX)


class TestTopic(SinkSuite):
    tears = 4

    @pytest.fixture(autouse=True)
    def _cluster(self, kafka: str, topic: MakeTopic, records: str) -> None:
        self.servers, self.make, self.records = kafka, topic, records

    def target(self, schema: pa.Schema, place: Path) -> Target:
        out = self.make()
        description = kafka_sink(self.servers, out, records=self.records)
        return Target(lambda: KafkaSink(description, schema), lambda: rows_of(self.servers, out, schema))


def seen(servers: str, topic: str) -> pa.Table:
    return read_committed_rows(Access(servers), topic, SETTLE_S)


def rows_of(servers: str, topic: str, schema: pa.Schema) -> pa.Table:
    """The rows as a reader who knows the columns' meaning takes them."""
    rows = [json.loads(value, parse_float=Decimal) for value in seen(servers, topic)["value"].to_pylist()]
    return pa.table(
        [pa.array([meant(row[f.name], f.type) for row in rows], f.type) for f in schema], schema=schema
    )


def meant(value: object, kind: pa.DataType) -> object:
    if value is None or pa.types.is_nested(kind):
        return list(value.items()) if pa.types.is_map(kind) and isinstance(value, dict) else value
    if pa.types.is_binary(kind):
        return base64.b64decode(str(value))
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(str(value))
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(str(value))
    if pa.types.is_decimal(kind):
        return pa.scalar(str(value)).cast(kind).as_py()
    return float(str(value)) if pa.types.is_floating(kind) else value


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return epochs.write_segments(tmp_path / "segments")


@pytest.fixture
def out(kafka: str, topic: MakeTopic, records: str) -> Target:
    name = topic()
    description = kafka_sink(kafka, name, records=records)
    return Target(lambda: KafkaSink(description, SCHEMA), lambda: rows_of(kafka, name, SCHEMA))


def write(place: Path, rows: pa.Table) -> list[Path]:
    return [epochs.write(place / f"{uuid.uuid4().hex}.parquet", rows)]


def test_what_a_zombie_has_open_is_aborted_and_it_cannot_go_on(
    out: Target, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, successor = out.sink(), out.sink()
    zombie.open(FLOW, 0, 1)
    commit = KafkaSink._commit

    def held_up(self: KafkaSink, producer: Producer) -> None:
        """Everything of the transaction is with the broker when another takes over."""
        producer.flush()
        with monkeypatch.context() as going_on:
            going_on.setattr(KafkaSink, "_commit", commit)
            assert feed(successor, directory, generation=2) is None
        commit(self, producer)

    monkeypatch.setattr(KafkaSink, "_commit", held_up)
    with pytest.raises(FencedError, match="by generation 2"):
        zombie.publish(record(0), segments(directory, 0))
    assert out.values() == expected()


@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_in_doubt_is_decided_by_the_record(
    out: Target, directory: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    sink, commit = out.sink(), KafkaSink._commit
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), segments(directory, 0))

    def reply_lost(self: KafkaSink, producer: Producer) -> None:
        if arrived:
            commit(self, producer)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patched:
        patched.setattr(KafkaSink, "_commit", reply_lost)
        with pytest.raises(SinkError) as raised:
            sink.publish(record(1), segments(directory, 1))
    assert raised.value.heals
    with pytest.raises(SinkError, match="not open"):
        sink.publish(record(1), segments(directory, 1))
    last = sink.open(FLOW, 0, 1)
    assert last == record(1 if arrived else 0)
    publish_after(sink, last, directory, generation=1)
    assert out.values() == expected()


def test_one_who_takes_the_id_and_is_refused_leaves_the_owner_as_it_was(
    kafka: str, topic: MakeTopic, records: str, directory: Path
) -> None:
    """Held up between the look at the record and the id, an old generation takes the id of its successor."""
    name = topic()
    description = kafka_sink(kafka, name, records=records)
    owner = KafkaSink(description, SCHEMA)
    owner.open(FLOW, 0, 2)
    Access(kafka).producer(f"holdfast.{name}").init_transactions(10)
    with pytest.raises(SinkError) as raised:
        owner.publish(record(0, generation=2), segments(directory, 0))
    assert raised.value.heals
    assert owner.open(FLOW, 0, 2) is None
    publish_after(owner, None, directory, generation=2)
    assert rows_of(kafka, name, SCHEMA)["value"].to_pylist() == expected()


def test_a_record_behind_an_open_transaction_of_another_sink_is_waited_for(
    kafka: str, topic: MakeTopic, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the last stable offset the record is an older one: to go by that would publish an epoch twice."""
    records, name = topic(partitions=16, **{"cleanup.policy": "compact"}), topic()
    sink = KafkaSink(kafka_sink(kafka, name, records=records), SCHEMA)
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), segments(directory, 0))
    other = Access(kafka).producer("test-" + uuid.uuid4().hex)
    other.init_transactions(10)
    other.begin_transaction()
    for partition in range(16):
        other.produce(records, b"{}", b"another", partition)
    other.flush()
    sink.publish(record(1), segments(directory, 1))
    monkeypatch.setattr("holdfast.core.limits.KAFKA_OUTAGE_MS_MAX", 3_000)
    with pytest.raises(SinkError, match="still open") as raised:
        KafkaSink(kafka_sink(kafka, name, records=records), SCHEMA).open(FLOW, 0, 2)
    assert raised.value.heals
    other.abort_transaction()
    monkeypatch.undo()
    assert KafkaSink(kafka_sink(kafka, name, records=records), SCHEMA).open(FLOW, 0, 2) == record(1)


def test_keys_headers_and_timestamps_are_those_of_the_columns(
    kafka: str, topic: MakeTopic, records: str, tmp_path: Path
) -> None:
    moment = dt.datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "user": pa.array([7, None, 9]),
            "at": pa.array([moment, moment, None], pa.timestamp("us", "UTC")),
            "about": pa.array(
                [[("trace", b"\x01"), ("trace", b"\x02")], [], None], pa.map_(pa.string(), pa.binary())
            ),
        }
    )
    name = topic(partitions=3)
    sink = KafkaSink(
        kafka_sink(kafka, name, key="user", headers="about", timestamp="at", records=records), rows.schema
    )
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), write(tmp_path, rows))
    found = {row["_key"]: row for row in seen(kafka, name).to_pylist()}
    assert found.keys() == {b"7", None, b"9"}
    assert found[b"7"]["_headers"] == [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": b"\x02"}]
    assert found[None]["_headers"] is None
    assert found[b"7"]["_timestamp"] == moment.replace(tzinfo=None)
    assert found[b"9"]["_timestamp"].year >= 2026
    assert json.loads(found[b"7"]["value"]) == {"user": 7, "at": "2026-01-31T12:00:00.123000Z"}


def test_arrow_messages_hold_many_rows_of_any_type(
    kafka: str, topic: MakeTopic, records: str, tmp_path: Path
) -> None:
    rows = epochs.odd_rows([*epochs.ODD, *epochs.NESTED])
    many = pa.concat_tables([rows] * 4_000).combine_chunks()
    name = topic()
    sink = KafkaSink(kafka_sink(kafka, name, payload="arrow", records=records), rows.schema)
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), write(tmp_path, many))
    values = seen(kafka, name)["value"]
    found = pa.concat_tables([pa.ipc.open_stream(value.as_buffer()).read_all() for value in values])
    assert 2 < len(values) < 100
    assert list(map(repr, found.to_pylist())) == list(map(repr, many.to_pylist()))


def test_bytes_are_written_as_they_are(kafka: str, topic: MakeTopic, records: str, tmp_path: Path) -> None:
    rows = pa.table({"k": ["a", "b"], "value": pa.array([b"\x00\xff", None], pa.binary())})
    name = topic()
    sink = KafkaSink(kafka_sink(kafka, name, payload="bytes", key="k", records=records), rows.schema)
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), write(tmp_path, rows))
    assert [(row["_key"], row["value"]) for row in seen(kafka, name).to_pylist()] == [
        (b"a", b"\x00\xff"),
        (b"b", None),
    ]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"key": "nobody"}, "no such column"),
        ({"timestamp": "value"}, "be the time of a message"),
        ({"headers": "name"}, "be headers"),
        ({"payload": "bytes", "key": "name"}, "cannot be a payload"),
        ({"payload": "bytes"}, "takes one column"),
    ],
)
def test_what_cannot_be_a_message_is_said_before_anything_runs(settings: dict[str, str], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        KafkaSink(kafka_sink("localhost:1", "t", **settings), SCHEMA)  # type: ignore[arg-type]


def test_a_topic_that_is_not_there_is_not_made(kafka: str, records: str) -> None:
    sink = KafkaSink(kafka_sink(kafka, f"test-{uuid.uuid4().hex}", records=records), SCHEMA)
    with pytest.raises(SinkError, match="there is no topic"):
        sink.open(FLOW, 0, 1)


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(
    kafka: str, topic: MakeTopic, records: str, directory: Path
) -> None:
    name = topic()
    sink = KafkaSink(kafka_sink(kafka, name, records=records), SCHEMA)
    feed(sink, directory, generation=1)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([name])[name].result(KAFKA_S_MAX)
    Cluster(Access(kafka)).make_topic(name, 1, {})
    with pytest.raises(SinkError, match="made anew after epoch 4"):
        sink.open(FLOW, 0, 2)


def test_a_message_that_the_topic_does_not_take_is_said_and_nothing_is_seen(
    kafka: str, topic: MakeTopic, records: str, tmp_path: Path
) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    sink = KafkaSink(kafka_sink(kafka, name, records=records, options={"compression.type": "none"}), SCHEMA)
    sink.open(FLOW, 0, 1)
    rows = pa.table([[1, 2], ["short", "x" * 5000]], schema=SCHEMA)
    with pytest.raises(SinkError) as raised:
        sink.publish(record(0), write(tmp_path, rows))
    assert raised.value.hint == "Raise max.message.bytes of the topic, or write shorter rows."
    assert not raised.value.heals
    assert seen(kafka, name).num_rows == 0


def test_secrets_are_in_no_text(kafka: str) -> None:
    options = {"sasl.username": "me", "sasl.password": "s3cret"}
    description = kafka_sink(kafka, "t", options=options)
    sink = KafkaSink(description, SCHEMA)
    assert "s3cret" not in f"{description!r} {description.facts} {sink} {sink._access!r}"
    wrong = replace(description, options=(("sasl.mechanism", "s3cret"), ("security.protocol", "s3cret")))
    with pytest.raises(PlanError) as raised:
        Access(wrong.servers, wrong.options).consumer("g")
    assert "s3cret" not in f"{raised.value} {raised.value.__cause__}"


def test_a_transaction_is_seen_as_a_whole_whatever_its_size(
    kafka: str, topic: MakeTopic, records: str, tmp_path: Path
) -> None:
    """Of many partitions, and larger than what the client keeps at a time."""
    numbers = pa.array(range(50_000))
    rows = pa.table({"n": numbers, "half": pc.divide(numbers.cast(pa.float64()), 2)})
    name = topic(partitions=4)
    settings = {"queue.buffering.max.messages": 2_000}
    sink = KafkaSink(kafka_sink(kafka, name, key="n", records=records, options=settings), rows.schema)
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), write(tmp_path, rows))
    found = seen(kafka, name)
    assert sorted(found["_key"].cast("string").cast(pa.int64()).to_pylist()) == numbers.to_pylist()
    assert set(found["_partition"].to_pylist()) == {0, 1, 2, 3}
    assert math.isclose(json.loads(found["value"][0].as_py())["half"] * 2, int(found["_key"][0].as_py()))
