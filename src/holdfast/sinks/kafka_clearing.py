"""Starting over with a topic: its record goes, its messages stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from holdfast.clients.kafka import Cluster, NoTopic, Outage, Refusal, client
from holdfast.core import limits
from holdfast.core.errors import SinkError
from holdfast.core.ids import new_attempt_id
from holdfast.flow.kafka import KafkaSink
from holdfast.sinks.clearing import Clearing, Left
from holdfast.sinks.contract import other_flow
from holdfast.sinks.kafka import access_of
from holdfast.sinks.kafka_record import Held, Records


class Topic(Clearing):
    """The record of a topic. Messages cannot be taken back: those of the earlier life stay before the new ones."""

    def __init__(self, description: KafkaSink) -> None:
        client()
        self._topic = description.topic
        self._access = access_of(description)
        cluster = Cluster(self._access)
        self._records = Records(self._access, cluster, description.records, description.topic)

    def left(self, flow: str) -> Left | None:
        """The record, if it says that anything was published."""
        with self._explained():
            held = self._held(flow)
        if held is None:
            return None
        stays = "its messages: the new ones come behind them"
        return Left(f"topic {self._topic!r}", epoch=held.last.epoch if held.last else None, stays=stays)

    def clear(self, flow: str) -> None:
        """A record of nothing, by no generation; written under the sink's own id, so that older openings are fenced."""
        with self._explained():
            if self._held(flow) is None:
                return
            producer = self._access.producer(f"holdfast.{self._topic}")
            producer.init_transactions(limits.KAFKA_OUTAGE_MS_MAX / 1000)
            held = self._records.read()
            if held is None:
                return
            empty = replace(held, claim=new_attempt_id(), generation=0, start=0, last=None)
            topic, partition, value, key = self._records.outgoing(empty)
            producer.begin_transaction()
            producer.produce(topic, value, key, partition)
            producer.commit_transaction(limits.KAFKA_OUTAGE_MS_MAX / 1000)
            # The commit is decided, but not yet to be seen: whoever looked now might still find the old record.
            self._records.read()

    def _held(self, flow: str) -> Held | None:
        """The record; none if there is none, or if it was emptied already."""
        try:
            held = self._records.glance()
        except NoTopic:
            return None
        if held is not None and held.flow != flow:
            raise other_flow(held.flow, flow)
        return held if held is not None and (held.last is not None or held.generation) else None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (Outage, Refusal, client().KafkaException) as error:
            raise SinkError(
                f"the record of topic {self._topic!r} cannot be reached: {error}",
                operation="reset",
                heals=isinstance(error, Outage),
                hint="Nothing else was removed after it: run the same command again when the servers answer.",
            ) from error
