"""A topic of Kafka: an item is a range of offsets of every partition, and its messages are its rows.

Invariants: an item ends where everything before was decided (the last stable offset), so that reading it never waits
for a transaction and always gives the same messages; a new partition is read from its first message; nothing is asked
of a topic but the one that the first item was found in, which Kafka's id of the topic tells.

What Kafka has deleted (`retention.ms`) before it was part of an item is an error, or with `on_lost="gap"` is passed over
and counted in the next item. What is deleted after that would give an epoch other rows than its first attempt read, so
it is always an error; but as long as no committed epoch has read the item, the next start passes over it as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.clients.kafka import Access, Bounds, Cluster, Outage, Refusal, client
from holdfast.clients.kafka_messages import Slice
from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.kafka import KafkaSource
from holdfast.ledger.inputs import Item
from holdfast.sources import kafka_slices
from holdfast.sources.contract import Limits, Source, Taken
from holdfast.sources.kafka_rows import BYTES, Complaints, Payloads
from holdfast.sources.kafka_slices import Positions
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.schemas import parse_schema

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class Kafka(Source):
    """The messages of one topic."""

    def __init__(self, flow: str, name: str, description: KafkaSource) -> None:
        client()
        declared = parse_schema(f"source {name!r}", description.schema) if description.schema else BYTES
        self._description = description
        self._group = f"holdfast.{flow}.{name}"
        self._access = Access(description.servers, description.options)
        self._cluster = Cluster(self._access)
        self._complaints = Complaints(name, description.topic, description.on_lost)
        arrow = arrow_schema(f"source {name!r}", declared)
        self._payloads = Payloads(self._complaints, description, declared, arrow, self._access, self._group)
        self._away_since: float | None = None
        _check_names(name, self._payloads.schema)

    def schema(self) -> t.StructType:
        """The columns of the payload, then those about the message."""
        return self._payloads.schema

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """The offsets after the last item, in as many items as an epoch's bound asks for.

        Behind one without rows there is always room for another: it may not have been passed over yet.
        """
        empty = after.last is not None and not after.last.rows
        room = min(most.items, max(limits.KAFKA_ITEMS_UNREAD_MAX - after.unread, int(empty)))
        bounds = self._looked(after.last) if room > 0 else None
        if bounds is None:
            return []
        position, lost = self._position(after.last, bounds)
        found: list[Item] = []
        while len(found) < room:
            item = self._item(after.number + len(found), position, lost, bounds)
            slices = kafka_slices.from_json(item.body["slices"])
            pins = after.last is None and not found and self._description.start == "latest"
            if not (item.rows or pins):
                break
            found.append(item)
            position, lost = {part.partition: part.stop for part in slices}, []
        return found

    def as_found(self, item: Item) -> Item:
        """Without what is gone, where gaps are accepted."""
        if self._description.on_lost != "gap":
            return item
        try:
            bounds = self._cluster.patiently(lambda: self._cluster.bounds(self._description.topic))
        except (Refusal, Outage) as error:
            raise self._complaints.of(error, []) from error
        self._check_topic(item, bounds.topic_id)
        slices = kafka_slices.from_json(item.body["slices"])
        kept = [_from(part, bounds.offsets[part.partition][0]) for part in slices]
        if kept == slices:
            return item
        gone = [Slice(old.partition, old.start, new.start) for old, new in zip(slices, kept, strict=True)]
        before = kafka_slices.from_json(item.body.get("lost", {}))
        body = _body(bounds.topic_id, kept, kafka_slices.joined([*before, *gone]))
        return Item(item.identity, kafka_slices.offsets_in(kept), item.bytes, body)

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The messages of items."""
        return self._payloads.rows(spark, self._tasks(items))

    def quarantined(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The malformed messages of items."""
        return self._payloads.malformed(spark, self._tasks(items))

    def commit(self, last: Item) -> None:
        """Tell a consumer group how far the flow is, for those who watch lags; nothing reads it, and nobody waits."""
        where = client().TopicPartition
        slices = kafka_slices.from_json(last.body["slices"])
        offsets = [where(self._description.topic, part.partition, part.stop) for part in slices]
        self._committer.commit(offsets=offsets, asynchronous=True)

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """As the flow says."""
        return None, self._description.max_rows_per_epoch

    def more_to_come(self) -> bool:
        """While the servers do not answer, nobody knows that there is nothing."""
        return self._away_since is not None

    # Looking

    @cached_property
    def _committer(self) -> Consumer:
        return self._access.consumer(self._group)

    def _looked(self, last: Item | None) -> Bounds | None:
        """What the topic holds; nothing while the servers are away, for a bounded time.

        A partition that ends before what was taken is one whose leader has not caught up.
        """
        try:
            bounds = self._cluster.bounds(self._description.topic)
            if last is not None:
                self._check_topic(last, bounds.topic_id)
                for part in kafka_slices.from_json(last.body["slices"]):
                    if bounds.offsets[part.partition][1] < part.stop:
                        raise Outage(f"partition {part.partition} ends before offset {part.stop}")
        except Outage as outage:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > limits.KAFKA_OUTAGE_MS_MAX / 1000:
                raise self._complaints.of(outage, []) from outage
            return None
        except Refusal as refusal:
            raise self._complaints.of(refusal, []) from refusal
        self._away_since = None
        return bounds

    def _check_topic(self, item: Item, topic_id: str) -> None:
        if item.body["topic_id"] != topic_id:
            raise self._complaints.other_topic()

    def _position(self, last: Item | None, bounds: Bounds) -> tuple[Positions, list[Slice]]:
        """Where the next item begins, and what was deleted before it."""
        if last is None:
            end = self._description.start == "latest"
            return {partition: between[end] for partition, between in bounds.offsets.items()}, []
        before = {part.partition: part.stop for part in kafka_slices.from_json(last.body["slices"])}
        earliest = {partition: first for partition, (first, _) in bounds.offsets.items()}
        lost = [
            Slice(partition, before.get(partition, 0), first)
            for partition, first in earliest.items()
            if before.get(partition, 0) < first
        ]
        if lost and self._description.on_lost == "fail":
            raise self._complaints.lost(lost, planned=False)
        return {partition: max(before.get(partition, 0), earliest[partition]) for partition in earliest}, lost

    def _item(self, number: int, position: Mapping[int, int], lost: Sequence[Slice], bounds: Bounds) -> Item:
        """Its identity is its number; what Kafka's messages weigh is not known before they are read."""
        most = min(self._description.max_rows_per_epoch or limits.EPOCH_ROWS_MAX, limits.KAFKA_ITEM_ROWS_MAX)
        ends = {partition: end for partition, (_, end) in bounds.offsets.items()}
        slices = kafka_slices.cut(position, ends, most)
        return Item(str(number), kafka_slices.offsets_in(slices), 0, _body(bounds.topic_id, slices, lost))

    # Reading

    def _tasks(self, items: Sequence[Item]) -> list[tuple[Slice, ...]]:
        slices = [part for item in items for part in kafka_slices.from_json(item.body["slices"])]
        if not slices:
            return []
        topic = self._description.topic
        try:
            topic_id, _ = self._cluster.patiently(lambda: self._cluster.described(topic))
        except (Refusal, Outage) as error:
            raise self._complaints.of(error, slices) from error
        for item in items:
            self._check_topic(item, topic_id)
        return kafka_slices.shared_out(kafka_slices.joined(slices), limits.KAFKA_TASK_ROWS_MAX)


def _body(topic_id: str, slices: Sequence[Slice], lost: Sequence[Slice]) -> Json:
    body: Json = {"topic_id": topic_id, "slices": kafka_slices.to_json(slices)}
    gone = [part for part in lost if part.start < part.stop]
    return body | (
        {"lost": kafka_slices.to_json(gone), "lost_rows": kafka_slices.offsets_in(gone)} if gone else {}
    )


def _from(part: Slice, first: int) -> Slice:
    """What is left of a slice of a partition that now begins at an offset."""
    return part._replace(start=min(max(part.start, first), part.stop))


def _check_names(name: str, schema: t.StructType) -> None:
    twice = {column for column in schema.names if schema.names.count(column) > 1}
    if twice:
        raise PlanError(
            f"source {name!r} has the column {min(twice)!r} twice: in its schema and about the message",
            operation="bind",
            hint="Leave it out of the schema, or set metadata=False and headers=False.",
        )
