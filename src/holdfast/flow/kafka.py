"""Describes topics of Kafka as sources and sinks.

What is in `options` may be a secret: it is told to the client and to nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.duration import idle_us, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

Option = str | int | float | bool
Options = tuple[tuple[str, Option], ...]

PAYLOADS = ("json", "bytes", "arrow")
STARTS = ("earliest", "latest")
ON_LOST = ("fail", "gap")
ON_ERROR = ("fail", "quarantine")
RECORDS = "holdfast-sinks"

# What the promises rest on is not for the flow to choose.
_OURS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "transactional.id",
    }
)


@dataclass(frozen=True)
class KafkaSource:
    """A topic, read from where the flow first found it."""

    servers: str
    topic: str
    schema: str | None = None
    payload: str = "json"
    start: str = "earliest"
    on_lost: str = "fail"
    on_error: str = "fail"
    max_rows_per_epoch: int | None = None
    idle_after_us: int | None = None
    metadata: bool = False
    headers: bool = False
    options: Options = field(default=(), repr=False)
    rereadable: ClassVar[bool] = True

    @property
    def quarantines(self) -> bool:
        """Whether what cannot be read is set aside instead of stopping the flow."""
        return self.on_error == "quarantine"

    def reading(self) -> str:
        """What decides which rows a range of offsets gives."""
        return f"{self.payload} {self.schema} {self.metadata} {self.headers}"

    @property
    def facts(self) -> Json:
        """What `explain` says of it; of the options only their names."""
        return {
            "kind": "kafka",
            "servers": self.servers,
            "topic": self.topic,
            "payload": self.payload,
            "schema": self.schema,
            "start": self.start,
            "on_lost": self.on_lost,
            "on_error": self.on_error,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "idle_after": None if self.idle_after_us is None else spelled(self.idle_after_us),
            "options": [name for name, _ in self.options],
        }


@dataclass(frozen=True)
class KafkaSink:
    """A topic that takes each epoch as one transaction."""

    servers: str
    topic: str
    payload: str = "json"
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    records: str = RECORDS
    options: Options = field(default=(), repr=False)

    @property
    def facts(self) -> Json:
        """What `explain` says of it; of the options only their names."""
        return {
            "kind": "kafka",
            "servers": self.servers,
            "topic": self.topic,
            "payload": self.payload,
            "key": self.key,
            "records": self.records,
            "options": [name for name, _ in self.options],
            "guarantee": "exactly_once",
            "because": "the messages of an epoch and the record of it are one transaction, "
            "which readers with isolation.level=read_committed see as a whole or not at all",
        }


def kafka(
    servers: str,
    topic: str,
    *,
    schema: str | None = None,
    payload: str = "json",
    start: str = "earliest",
    max_rows_per_epoch: int | None = None,
    on_lost: str = "fail",
    on_error: str = "fail",
    idle_after: str | None = None,
    metadata: bool = False,
    headers: bool = False,
    options: Mapping[str, Option] | None = None,
) -> KafkaSource:
    """Read a topic of Kafka: every committed message once, whatever happens to the flow.

    - `servers`: `"host:9092,other:9092"`.
    - `topic`: its name.
    - `schema`: the columns of the payload, as Spark SQL text; not with `payload="bytes"`.
    - `payload`: what a message is: `"json"`, the default, an object with the columns of `schema`; `"arrow"`, a stream of Arrow's with
      any number of rows; `"bytes"`, one column `value`.
    - `start`: where a flow begins that has read nothing yet: `"earliest"`, the default, or `"latest"`.
    - `max_rows_per_epoch`: the most offsets that an epoch takes; by default what there is, within bounds of memory.
    - `on_lost`: what Kafka deleted before it was read stops the flow with `"fail"`, the default; with `"gap"` it is counted and passed
      over.
    - `on_error`: malformed JSON stops the flow with `"fail"`, the default; with `"quarantine"` it is set aside.
    - `idle_after`: as for `hf.files`; None by default.
    - `metadata`: adds `_key`, `_topic`, `_partition`, `_offset` and `_timestamp`; False by default.
    - `headers`: adds `_headers`; False by default.
    - `options`: go to the client (librdkafka) as they are; their values are shown nowhere. None by default.

    Raises `hf.PlanError` if a name or a choice cannot be, `schema` and `payload` do not go together, a bound is below 1, or an
    option is not for the flow to set. A broker that cannot be reached is an error of the run.

    >>> kafka("localhost:9092", "orders", schema="user string, amount double", start="latest").start
    'latest'
    """
    _check_names("kafka", servers, topic)
    _check_choices(
        "kafka",
        ("payload", payload, PAYLOADS),
        ("start", start, STARTS),
        ("on_lost", on_lost, ON_LOST),
        ("on_error", on_error, ON_ERROR),
    )
    if (payload == "bytes") != (schema is None):
        raise PlanError(
            f"payload={payload!r} {'has one column, value, and no' if schema else 'needs a'} schema",
            operation="kafka",
            hint='Give schema="..." with payload "json" or "arrow", and leave it out with "bytes".',
        )
    if on_error == "quarantine" and payload != "json":
        raise PlanError(
            f'on_error="quarantine" is for JSON, and the payload is {payload!r}', operation="kafka"
        )
    if max_rows_per_epoch is not None and max_rows_per_epoch < 1:
        raise PlanError(f"max_rows_per_epoch must be at least 1, not {max_rows_per_epoch}", operation="kafka")
    bounds = max_rows_per_epoch, idle_us(idle_after)
    told = _checked_options("kafka", options)
    return KafkaSource(
        servers, topic, schema, payload, start, on_lost, on_error, *bounds, metadata, headers, told
    )


def kafka_sink(
    servers: str,
    topic: str,
    *,
    payload: str = "json",
    key: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    records: str = RECORDS,
    options: Mapping[str, Option] | None = None,
) -> KafkaSink:
    """Write to a topic of Kafka, an epoch a transaction: readers with `isolation.level=read_committed` see it once.

    - `servers`: `"host:9092,other:9092"`.
    - `topic`: its name. It must be there.
    - `payload`: what a message is: `"json"`, the default, a row as an object; `"bytes"`, the column `value`; `"arrow"`, many rows as a
      stream of Arrow's.
    - `key`, `headers`, `timestamp`: names of the columns that become those of the message; none by default. The column of the headers
      is no part of the payload.
    - `records`: the compacted topic that says what was published last, `"holdfast-sinks"` by default. It is made if it is not there.
    - `options`: go to the client (librdkafka) as they are; their values are shown nowhere. None by default.

    Raises `hf.PlanError` if a name or a choice cannot be, `payload` has no room for what is asked for, or an option is not for
    the flow to set.
    """
    _check_names("kafka_sink", servers, topic, records)
    _check_choices("kafka_sink", ("payload", payload, PAYLOADS))
    if topic in (records, RECORDS):
        raise PlanError(
            f"{topic!r} cannot hold rows and their records",
            operation="kafka_sink",
            hint="Publish to a topic of the rows' own.",
        )
    if payload == "arrow" and (key or headers or timestamp):
        raise PlanError(
            'a message of payload "arrow" has many rows, and no key, headers or timestamp of one of them',
            operation="kafka_sink",
        )
    return KafkaSink(
        servers, topic, payload, key, headers, timestamp, records, _checked_options("kafka_sink", options)
    )


def _check_names(operation: str, servers: str, *topics: str) -> None:
    if not servers.strip():
        raise PlanError("no servers", operation=operation, hint="Write them as host:9092,other:9092.")
    for topic in topics:
        fits = 0 < len(topic) < 250 and topic not in (".", "..")
        if not fits or not all(c.isascii() and (c.isalnum() or c in "._-") for c in topic):
            raise PlanError(f"{topic!r} cannot name a topic", operation=operation)


def _check_choices(operation: str, *given: tuple[str, str, tuple[str, ...]]) -> None:
    for name, value, choices in given:
        if value not in choices:
            raise PlanError(f"{name}={value!r} is not one of {', '.join(choices)}", operation=operation)


def _checked_options(operation: str, options: Mapping[str, Option] | None) -> Options:
    """They must be plain values, because tasks are sent them, and must not touch what the promises rest on."""
    for name, value in (options or {}).items():
        if name in _OURS:
            raise PlanError(
                f"option {name!r} is not for the flow to set", operation=operation, hint="Leave it out."
            )
        if not isinstance(value, str | int | float | bool):
            raise PlanError(
                f"option {name!r} is a {type(value).__name__}, and no text, number or boolean",
                operation=operation,
            )
    return tuple(sorted((options or {}).items()))
