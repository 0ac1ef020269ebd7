"""The records of Kafka sinks: a compacted topic, with a message a target topic, written in the sinks' transactions.

The message says who may write the target (the claim) and what was published last (the SinkRecord). It is part of the
transaction that publishes, so it is there if and only if the rows are.

Why a topic of its own: in the target, records would be messages that readers have to pass over, and would be deleted
with old messages; and offsets of a consumer group, which can also be part of a transaction, are forgotten by Kafka
after a week without commits.

A record counts only when everything before it is decided: the end of what was *written* is looked up first, and then
waited for. Up to the last stable offset alone would not do: behind a transaction of another sink that is still open
there may be a record of ours, committed and not yet to be seen.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import pyarrow.compute as pc

from holdfast.clients.kafka import Access, Cluster, NoTopic, Outage
from holdfast.clients.kafka_messages import Slice, read
from holdfast.core import limits
from holdfast.core.errors import FencedError, SinkError
from holdfast.sinks.contract import SinkRecord, other_flow

_GROUP = "holdfast"

# Compacted soon and in small pieces, as it is read when a sink is opened.
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.05",
}


@dataclass(frozen=True)
class Held:
    """What the record of a target says."""

    flow: str
    claim: str  # the opening that may publish
    generation: int
    start: int  # the first epoch that the target was to be given
    topic_id: str  # of the target, by which Kafka tells it from another one of the same name
    last: SinkRecord | None

    def to_bytes(self) -> bytes:
        """As it is stored."""
        last = self.last.to_json() if self.last else None
        return json.dumps({**vars(self), "last": last}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Held:
        """Read what `to_bytes` wrote."""
        fields = json.loads(stored)
        last = SinkRecord.from_json(fields["last"]) if fields["last"] else None
        names = ("flow", "claim", "generation", "start", "topic_id")
        return cls(**{name: fields[name] for name in names}, last=last)


def refuse_unless_ours(held: Held | None, flow: str, generation: int, topic_id: str, where: str) -> None:
    """Stop before anything is changed, so that a mistake fences nobody."""
    if held is None:
        return
    if held.flow != flow:
        raise other_flow(held.flow, flow)
    if held.generation > generation:
        raise fenced(held, generation, where)
    if held.last is not None and held.topic_id != topic_id:
        raise SinkError(
            f"{where} was deleted and made anew after epoch {held.last.epoch} was published",
            operation="open",
            hint="What was published is gone. To start anew, use a new topic and a new work directory.",
        )


def fenced(by: Held, generation: int, where: str) -> FencedError:
    """The error for an opening that was replaced."""
    newer = by.generation > generation
    who = f"generation {by.generation}" if newer else "another opening of the same generation"
    told = f", which has published up to epoch {by.last.epoch}" if by.last else ""
    return FencedError(f"generation {generation} was fenced in {where} by {who}{told}", operation="fence")


class Records:
    """The records topic, as the sink of one target uses it."""

    def __init__(self, access: Access, cluster: Cluster, topic: str, target: str) -> None:
        self._access = access
        self._cluster = cluster
        self._topic = topic
        self._target = target
        # By a fixed number, so that partitions that somebody adds change nothing.
        self._partition = zlib.crc32(target.encode()) % limits.KAFKA_RECORDS_PARTITIONS

    def prepare(self) -> None:
        """Make the topic if it is not there."""
        try:
            _, partitions = self._cluster.patiently(lambda: self._cluster.described(self._topic))
        except NoTopic:
            self._cluster.make_topic(self._topic, limits.KAFKA_RECORDS_PARTITIONS, _CONFIG)
            return
        if len(partitions) < limits.KAFKA_RECORDS_PARTITIONS:
            raise SinkError(
                f"the topic {self._topic!r} has {len(partitions)} partitions, and records need "
                f"{limits.KAFKA_RECORDS_PARTITIONS}",
                operation="open",
                hint="Give it more partitions and cleanup.policy=compact, or name another one with records=.",
            )

    def glance(self) -> Held | None:
        """The newest record that is decided already: a predecessor may have a newer one on its way."""
        return self._found(*self._cluster.patiently(self._stable))

    def read(self) -> Held | None:
        """The record of the target, once its id is ours; none if nothing was ever published or claimed."""
        return self._found(*self._decided())

    def _found(self, first: int, end: int) -> Held | None:
        newest = max(first, end - limits.KAFKA_RECORDS_NEWEST)
        return self._between(newest, end) or self._between(first, newest)

    def outgoing(self, held: Held) -> tuple[str, int, bytes, bytes]:
        """Topic, partition, value and key of the message that says so."""
        return self._topic, self._partition, held.to_bytes(), self._target.encode()

    def _stable(self) -> tuple[int, int]:
        return self._cluster.bounds(self._topic).offsets[self._partition]

    def _decided(self) -> tuple[int, int]:
        """Where the partition begins and ends, once all that has been written so far is decided."""
        mine = [self._partition]
        end = self._cluster.patiently(lambda: self._cluster.written(self._topic, mine))[self._partition]

        def decided() -> int:
            first, stable = self._stable()
            if stable < end:
                raise Outage(f"a transaction on {self._topic!r} is still open")
            return first

        return self._cluster.patiently(decided), end

    def _between(self, start: int, stop: int) -> Held | None:
        if start >= stop:
            return None
        consumer = self._access.consumer(_GROUP)
        try:
            found = list(
                read(consumer, self._topic, [Slice(self._partition, start, stop)], ["value", "_key"])
            )
        finally:
            consumer.close()
        for batch in reversed(found):
            mine = batch.filter(pc.equal(batch.column("_key"), self._target.encode()))
            if mine.num_rows:
                return Held.from_bytes(mine.column("value")[-1].as_py())  # bounded: one record
        return None
