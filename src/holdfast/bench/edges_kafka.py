"""Topics of Kafka as a target: Holdfast's sink, and the same messages without transaction and record.

Spark's connector is not among the sides: there is none for this version of Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.bench.data import DataSet
from holdfast.bench.edges_contract import FLOW, Edge, Where, timed
from holdfast.bench.edges_data import ARROW, SEGMENTS, segments_of
from holdfast.bench.report import Figure, ratio
from holdfast.bench.rounds import Rounds, Side
from holdfast.clients.kafka import Access, Cluster
from holdfast.clients.kafka_messages import produce
from holdfast.core import limits
from holdfast.flow import kafka as flow_kafka
from holdfast.sinks import reading
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.kafka import KafkaSink
from holdfast.sinks.kafka_payload import Encoding

NAME = "kafka"


def edge(where: Where) -> Edge:
    """The sink and its sides."""
    assert where.kafka is not None, "checked by whoever chose the edges"
    servers = where.kafka
    sides: dict[str, Side] = {
        "holdfast": lambda spark, made: _holdfast(servers, made),
        "plain": lambda spark, made: _plain(servers, made),
    }
    return Edge(NAME, sides, _figures, {})


def _figures(rounds: Rounds) -> list[Figure]:
    return [ratio("kafka_over_plain", rounds["holdfast"], rounds["plain"])]


def _holdfast(servers: str, made: DataSet) -> list[float]:
    with _topic(servers) as description:
        sink = KafkaSink(description, ARROW)
        sink.open(FLOW, 0, 1)
        seconds: list[float] = []
        for number, epoch in enumerate(made.files):
            with timed(seconds):
                sink.publish(SinkRecord(FLOW, 0, number, 0, 1), segments_of(epoch))
        sink.close()
        return seconds


def _plain(servers: str, made: DataSet) -> list[float]:
    """The same messages by the same client, until the cluster has all of them."""
    with _topic(servers) as description:
        encoding = Encoding(description, ARROW)
        producer = Access(servers).producer(None)
        seconds: list[float] = []
        for epoch in made.files:
            with timed(seconds):
                for messages in encoding.messages(reading.batches(segments_of(epoch), ARROW)):
                    produce(producer, description.topic, messages)
                producer.flush(limits.KAFKA_OUTAGE_MS_MAX / 1000)
        return seconds


@contextmanager
def _topic(servers: str) -> Iterator[flow_kafka.KafkaSink]:
    """A topic of a side's own, and one for its record."""
    name = f"holdfast-bench-{uuid.uuid4().hex}"
    cluster = Cluster(Access(servers))
    cluster.make_topic(name, SEGMENTS, {})
    try:
        yield flow_kafka.KafkaSink(servers, name, records=f"{name}-records")
    finally:
        cluster.drop_topic(name)
        cluster.drop_topic(f"{name}-records")
