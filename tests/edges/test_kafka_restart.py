"""A broker that goes away and comes back costs neither a source nor a sink anything. On a broker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import servers
from holdfast.clients.kafka import Access
from holdfast.clients.kafka_messages import Slice, read, read_committed_rows
from holdfast.flow.kafka import kafka, kafka_sink
from holdfast.sinks.kafka import KafkaSink
from holdfast.sources.contract import NOTHING, Limits
from holdfast.sources.kafka import Kafka
from holdfast.testing import epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, publish_after, record, segments

KAFKA_S_MAX = 60


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "services"
    yield folder
    servers.services("remove", home=folder)


def started(home: Path) -> str:
    done = servers.services("start", "kafka", home=home)
    if (home / "kafka" / "missing").exists():
        servers.be_without("kafka", (home / "kafka" / "missing").read_text().strip())
    assert done.returncode == 0, done.stderr
    return (home / "kafka" / "address").read_text().strip()


@pytest.mark.slow
def test_a_broker_that_was_killed_is_waited_for(home: Path, tmp_path: Path) -> None:
    address = started(home)
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
        made.result(KAFKA_S_MAX)
    producer = Producer({"bootstrap.servers": address})
    for _ in range(100):
        producer.produce("in", b"{}", partition=0)
    assert producer.flush(KAFKA_S_MAX) == 0
    directory = epochs.write_segments(tmp_path / "segments")
    source = Kafka(FLOW, "in", kafka(address, "in", payload="bytes"))
    sink = KafkaSink(kafka_sink(address, "out"), SCHEMA)
    sink.open(FLOW, 0, 1)
    sink.publish(record(0), segments(directory, 0))
    (item,) = source.next(NOTHING, Limits())
    assert servers.services("kill", "kafka", home=home).returncode == 0

    with ThreadPoolExecutor() as pool:
        rest = pool.submit(publish_after, sink, record(0), directory, 1)
        consumer = Access(address).consumer("test")
        rows = pool.submit(lambda: list(read(consumer, "in", [Slice(0, 0, 100)], ["_offset"])))
        assert source.next(NOTHING, Limits()) == []
        assert source.more_to_come()
        assert started(home) == address
        rest.result(KAFKA_S_MAX)
        assert sum(batch.num_rows for batch in rows.result(KAFKA_S_MAX)) == 100
    assert source.next(NOTHING, Limits()) == [item]
    assert not source.more_to_come()
    values = read_committed_rows(Access(address), "out", settle_s=5)["value"].cast("string")
    assert sorted(int(value.as_py().split(":")[1].split(",")[0]) for value in values) == expected()
