"""A topic of Kafka: each epoch is one transaction, which holds its messages and the sink's record.

The transactional id belongs to the target, whichever flow writes it. Whoever opens the target first reads its record,
so that a mistake fences nobody; then takes the id, by which Kafka fences every older producer and ends what that had
open; reads the record again; and writes its claim. What is committed under a claim was admitted by the record that was
read under it, and nobody else can have written in between.

A commit whose reply was lost is in doubt: the opening ends, and the next one finds the record, or does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.clients.kafka import Access, Cluster, NoTopic, Outage, Refusal, client, explained
from holdfast.clients.kafka_messages import Outgoing, produce, read_committed_rows
from holdfast.core import crashpoints, limits
from holdfast.core.errors import HoldfastError, SinkError
from holdfast.core.ids import new_attempt_id
from holdfast.flow import kafka as flow_kafka
from holdfast.sinks import kafka_record, reading
from holdfast.sinks.contract import SinkRecord, admit, opened_for
from holdfast.sinks.kafka_payload import Encoding
from holdfast.sinks.kafka_record import Held, Records

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_FENCED = ("_FATAL", "_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")

_HINTS = {
    "MSG_SIZE_TOO_LARGE": "Raise max.message.bytes of the topic, or write shorter rows.",
    "AUTHORIZATION": "The user needs Write on the topic, on the records topic, and on the transactional id, which is "
    "holdfast. and the name of the topic.",
}


def access_of(description: flow_kafka.KafkaSink) -> Access:
    """How the cluster of a sink is reached."""
    return Access(description.servers, description.options)


def copy_target(description: flow_kafka.KafkaSink, topic: str, new: str) -> None:
    """Give an empty topic the committed messages of another, and the record of it, so that a sink goes on there."""
    access = access_of(description)
    cluster = Cluster(access)
    held = Records(access, cluster, description.records, topic).read()
    found = read_committed_rows(access, topic, limits.KAFKA_OUTAGE_MS_MAX / 1000)
    producer = access.producer(f"holdfast.{new}")
    producer.init_transactions(limits.KAFKA_OUTAGE_MS_MAX / 1000)
    producer.begin_transaction()
    for batch in found.combine_chunks().to_batches():
        columns = (batch.column(name) for name in ("value", "_key", "_timestamp", "_headers"))
        value, key, moment, headers = columns
        produce(producer, new, Outgoing(value, key, moment.cast("int64"), headers))
    if held is not None:
        held = replace(held, topic_id=cluster.described(new)[0])
        where, partition, record, target = Records(access, cluster, description.records, new).outgoing(held)
        producer.produce(where, record, target, partition)
    producer.commit_transaction(limits.KAFKA_OUTAGE_MS_MAX / 1000)


@dataclass(frozen=True)
class _Opening:
    producer: Producer
    held: Held
    branch: int

    @property
    def flow(self) -> str:
        return self.held.flow

    @property
    def generation(self) -> int:
        return self.held.generation


class KafkaSink:
    """Publishes each epoch into one topic."""

    def __init__(self, description: flow_kafka.KafkaSink, schema: pa.Schema) -> None:
        client()
        self._topic = description.topic
        self._servers = description.servers
        self._schema = schema
        self._encoding = Encoding(description, schema)
        self._access = access_of(description)
        self._cluster = Cluster(self._access)
        self._records = Records(self._access, self._cluster, description.records, description.topic)
        self._opening: _Opening | None = None

    def __str__(self) -> str:
        return f"topic {self._topic!r}"

    @property
    def place(self) -> object:
        """The topic, wherever its servers are named from."""
        return "kafka", self._servers, self._topic

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        """Fence every older opening of the topic, then say what is the last record of it."""
        self._opening = None
        with self._explained("open"):
            topic_id = self._topic_id()
            self._records.prepare()
            kafka_record.refuse_unless_ours(self._records.glance(), flow, generation, topic_id, str(self))
            producer = self._access.producer(f"holdfast.{self._topic}")
            producer.init_transactions(limits.KAFKA_OUTAGE_MS_MAX / 1000)
            found = self._records.read()
            kafka_record.refuse_unless_ours(found, flow, generation, topic_id, str(self))
            first, last = (found.start, found.last) if found else (start, None)
            held = Held(flow, new_attempt_id(), generation, first, topic_id, last)
            producer.begin_transaction()
            self._put(producer, held)
            self._commit(producer)
        self._opening = _Opening(producer, held, branch)
        return held.last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        """Write the rows of one epoch, once; an epoch without rows is only recorded."""
        opening = opened_for(self._opening, record, self)
        held = opening.held
        if admit(held.last, record, start=held.start) == "already":
            return
        crashpoints.reach("sink.before_stage")
        published = replace(held, last=record)
        with self._explained("publish", opening, record.epoch), self._transaction(opening.producer):
            for messages in self._encoding.messages(reading.batches(segments, self._schema)):
                produce(opening.producer, self._topic, messages)
            crashpoints.reach("sink.after_stage")
            self._put(opening.producer, published)
            crashpoints.reach("sink.after_publish")
        self._opening = replace(opening, held=published)
        crashpoints.reach("sink.after_record")

    def close(self) -> None:
        """Let go of the target; the record stays in it."""
        self._opening = None

    # Opening

    def _topic_id(self) -> str:
        """Which topic it is. It is the user's to make: how many partitions it has is a decision."""
        try:
            return self._cluster.patiently(lambda: self._cluster.described(self._topic))[0]
        except NoTopic as missing:
            raise SinkError(
                f"there is no {self}",
                operation="open",
                hint="Make it, with as many partitions as its readers need.",
            ) from missing

    # Transactions

    @contextmanager
    def _transaction(self, producer: Producer) -> Iterator[None]:
        """Committed as a whole; what fails before that is aborted, and the opening goes on."""
        producer.begin_transaction()
        try:
            yield
        except HoldfastError:
            producer.abort_transaction(limits.KAFKA_OUTAGE_MS_MAX / 1000)
            raise
        self._commit(producer)

    def _put(self, producer: Producer, held: Held) -> None:
        """The record goes last, and everything is sent before it: others' records wait for it as shortly as can be."""
        topic, partition, value, key = self._records.outgoing(held)
        producer.flush(limits.KAFKA_OUTAGE_MS_MAX / 1000)
        producer.produce(topic, value, key, partition)

    def _commit(self, producer: Producer) -> None:
        """Until there is an answer: a commit may be asked for again as long as it is the same transaction."""
        deadline = time.monotonic() + limits.KAFKA_OUTAGE_MS_MAX / 1000
        while True:
            try:
                producer.commit_transaction(limits.KAFKA_ANSWER_MS_MAX / 1000)
                return
            except client().KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise

    # Errors

    @contextmanager
    def _explained(
        self, operation: str, opening: _Opening | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """Tell a fenced opening from a cluster that is away, and from one that refuses."""
        try:
            yield
        except client().KafkaException as error:
            self._opening = None
            raise self._failed(self._cause(error.args[0], opening), operation, epoch) from error
        except (Outage, Refusal) as error:
            self._opening = None
            raise self._failed(error, operation, epoch) from error

    def _cause(self, error: KafkaError, opening: _Opening | None) -> Exception:
        """Why a transaction failed, and that is not because another has opened the topic."""
        if opening is None or isinstance(explained(error), Outage):
            return explained(error)
        error = _asked_why(opening.producer) or error
        with suppress(client().KafkaException):
            opening.producer.abort_transaction(limits.KAFKA_ANSWER_MS_MAX / 1000)
        self._refuse_fenced(opening.held)
        ended = error.fatal() or error.name() in _FENCED
        return Outage(f"Kafka ended the transaction: {error.str()}") if ended else explained(error)

    def _refuse_fenced(self, held: Held) -> None:
        """Only a claim fences: a producer that took the id and was then refused has none."""
        try:
            now = self._records.read()
        except (Outage, Refusal):
            return
        if now is not None and now.claim != held.claim:
            raise kafka_record.fenced(now, held.generation, str(self))

    def _failed(self, error: Exception, operation: str, epoch: int | None) -> SinkError:
        heals, hint = (
            isinstance(error, Outage),
            next((h for part, h in _HINTS.items() if part in str(error)), None),
        )
        if heals:
            hint = "Nothing was lost: what is not published is offered again in the next run."
        return SinkError(
            f"{self} cannot be written: {error}", operation=operation, epoch=epoch, heals=heals, hint=hint
        )


def _asked_why(producer: Producer) -> KafkaError | None:
    """A failed transaction refuses messages without a reason; the reason is why no other one can begin."""
    try:
        producer.begin_transaction()
    except client().KafkaException as refused:
        why: KafkaError = refused.args[0]
        return why if why.fatal() or why.txn_requires_abort() else None
    return None
