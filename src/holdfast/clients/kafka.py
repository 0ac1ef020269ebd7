"""A Kafka cluster as sources and sinks see it: set up, asked, and its errors told apart.

Invariants: an option's value is in no error; whatever waits for the cluster waits a bounded time. What may pass by
itself (a broker that restarts, a partition without a leader) is an `Outage`, everything else a `Refusal`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.core.extras import package_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

_ALL = {
    # Failures pass through errors of ours, so the client need not write them to stderr too.
    "log_level": 2,
    # Who waits for a broker sees it soon after it is back: the client would wait for up to ten seconds.
    "reconnect.backoff.max.ms": 500,
}

_READ = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # where to go on is decided by us, and said
}
# What is read is there already. A slice that ends with a marker of a transaction ends with an empty answer, for which
# a broker would wait half a second; and the client would wait a second whenever its queue was full for a moment.
_READ_FAST = {
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 200_000,
    "max.partition.fetch.bytes": 8 << 20,
}

_WRITE = {
    "enable.idempotence": True,
    # A key is in the partition in which Kafka's own clients would put it.
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "linger.ms": 5,
    "compression.type": "lz4",
    "delivery.report.only.error": True,
    "message.max.bytes": 100_000_000,  # the topic's own limit decides
    "transaction.timeout.ms": limits.KAFKA_TRANSACTION_MS_MAX,
}

_PASSING = (
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_WAIT_COORD", "_WAIT_CACHE", "_IN_PROGRESS",
    "REQUEST_TIMED_OUT", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_CONTROLLER",
    "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS", "UNSTABLE_OFFSET_COMMIT",
)  # fmt: skip


class Refusal(Exception):
    """The cluster says no, and will say so again."""


class NoTopic(Refusal):
    """There is no such topic."""


class Vanished(Refusal):
    """The cluster no longer has what lies at an offset."""

    def __init__(self, partition: int, reason: str) -> None:
        super().__init__(reason)
        self.partition = partition


class Outage(Exception):
    """The cluster does not answer, or not yet."""


@dataclass(frozen=True)
class Bounds:
    """What a topic holds: which topic it is, and by partition its first offset and the end of what is decided."""

    topic_id: str
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Access:
    """How a cluster is reached; it goes to tasks as it is."""

    servers: str
    options: tuple[tuple[str, str | int | float | bool], ...] = ()

    def __repr__(self) -> str:
        return f"Access({self.servers!r})"

    def settings(self, *ours: Mapping[str, object]) -> dict[str, Any]:
        """Ours first, so that the user's may tune what the promises do not rest on."""
        merged: dict[str, Any] = dict(_ALL)
        for part in ours:
            merged |= part
        return merged | dict(self.options) | {"bootstrap.servers": self.servers}

    def consumer(self, group: str) -> Consumer:
        """A reader of committed messages that commits nothing by itself."""
        with self._made():
            return client().Consumer(self.settings(_READ_FAST, {"group.id": group}, _READ))

    def producer(self, transactional_id: str | None) -> Producer:
        """A writer of transactions; without an id, of messages that are seen as soon as they are there."""
        if transactional_id is None:
            ours = {name: value for name, value in _WRITE.items() if not name.startswith("transaction")}
        else:
            ours = {**_WRITE, "transactional.id": transactional_id}
        with self._made():
            return client().Producer(self.settings(ours))

    def admin(self, heard: Callable[[KafkaError], None]) -> AdminClient:
        """One that asks; `heard` is told of what goes wrong in between."""
        from confluent_kafka.admin import AdminClient

        with self._made():
            return AdminClient(self.settings({"error_cb": heard}))

    @contextmanager
    def _made(self) -> Iterator[None]:
        """The client's complaint about an option may repeat its value, so only the option is named."""
        try:
            yield
        except client().KafkaException as error:
            said = str(error.args[0].str())
            named = [name for name, _ in self.options if f'"{name}"' in said]
            raise PlanError(
                f"the Kafka client does not take the options: {named[0] if named else 'one of them'} is not right",
                operation="kafka",
                hint="CONFIGURATION.md of librdkafka lists the options and their values.",
            ) from None


class Cluster:
    """Asks a cluster about its topics."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._heard = ""

    def bounds(self, topic: str) -> Bounds:
        """What a reader of committed messages may read now."""
        topic_id, partitions = self.described(topic)
        earliest = self._offsets(topic, partitions, earliest=True)
        stable = self._offsets(topic, partitions)
        return Bounds(topic_id, {p: (earliest[p], stable[p]) for p in partitions})

    def written(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """By partition, the end of what was written, decided or not."""
        return self._offsets(topic, partitions, committed=False)

    def described(self, topic: str) -> tuple[str, list[int]]:
        """The id of a topic, which no other topic ever has, and its partitions."""
        names = client().TopicCollection([topic])
        found = self._answer(self._admin.describe_topics(names, request_timeout=_answer_s())[topic])
        return str(found.topic_id), sorted(partition.id for partition in found.partitions)

    def make_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Make a topic with the cluster's own replication, unless it is there, and wait until it is known everywhere."""
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config))
        try:
            self._answer(self._admin.create_topics([wanted], request_timeout=_answer_s())[topic])
        except Refusal as refusal:
            if "already exists" not in str(refusal):
                raise
        self.patiently(lambda: self._known(topic))

    def _known(self, topic: str) -> None:
        """A topic is made before every server knows of it."""
        try:
            self.bounds(topic)
        except NoTopic as missing:
            raise Outage(str(missing)) from missing

    def drop_topic(self, topic: str) -> None:
        """Delete a topic, if it is there."""
        with suppress(NoTopic):
            self._answer(self._admin.delete_topics([topic], request_timeout=_answer_s())[topic])

    def topics(self) -> list[str]:
        """The names of all topics."""
        try:
            return list(self._admin.list_topics(timeout=_answer_s()).topics)
        except client().KafkaException as error:
            raise explained(error.args[0], self._heard) from error

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer; an outage is raised once it has lasted too long."""
        deadline = time.monotonic() + limits.KAFKA_OUTAGE_MS_MAX / 1000
        while True:
            try:
                return ask()
            except Outage:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(limits.POLL_MS / 1000)

    @cached_property
    def _admin(self) -> AdminClient:
        return self.access.admin(self._hear)

    def _hear(self, error: KafkaError) -> None:
        self._heard = str(error.str())

    def _offsets(
        self, topic: str, partitions: list[int], *, earliest: bool = False, committed: bool = True
    ) -> dict[int, int]:
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.earliest() if earliest else OffsetSpec.latest()
        level = client().IsolationLevel
        asked = self._admin.list_offsets(
            {client().TopicPartition(topic, partition): spec for partition in partitions},
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=_answer_s(),
        )
        return {where.partition: int(self._answer(answer).offset) for where, answer in asked.items()}

    def _answer(self, future: Any) -> Any:
        try:
            return future.result(2 * _answer_s())
        except client().KafkaException as error:
            raise explained(error.args[0], self._heard) from error
        except TimeoutError as error:
            raise Outage("no answer") from error


def explained(error: KafkaError, heard: str = "") -> Exception:
    """What an error of the client means; `heard` is what it said in between, which is often the cause of a time-out."""
    said = f"{error.name()}: {error.str()}"
    if error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"):
        return NoTopic(said)
    if error.name() in _PASSING or error.retriable():
        return Outage(f"{said} ({heard})" if heard else said)
    return Refusal(said)


def client() -> Any:
    """The package of the client, which only flows with Kafka need."""
    with package_of("kafka"):
        import confluent_kafka
    return confluent_kafka


def _answer_s() -> float:
    return limits.KAFKA_ANSWER_MS_MAX / 1000
