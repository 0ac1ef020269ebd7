"""Messages in and out of the Kafka client: the one place where rows are Python objects.

The client takes and gives one object a message, and has no other way. So the loops over messages are here and nowhere
else, as comprehensions that make or take whole columns; before and behind them there are only Arrow arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.clients.kafka import Access, Cluster, Outage, Vanished, client, explained
from holdfast.core import limits

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# What can be known of a message, in the order of the columns.
COLUMNS: dict[str, tuple[pa.DataType, Callable[[Any], object]]] = {
    "value": (pa.binary(), lambda message: message.value()),
    "_key": (pa.binary(), lambda message: message.key()),
    "_topic": (pa.string(), lambda message: message.topic()),
    "_partition": (pa.int32(), lambda message: message.partition()),
    "_offset": (pa.int64(), lambda message: message.offset()),
    "_timestamp": (pa.timestamp("ms"), lambda message: message.timestamp()),
    "_headers": (HEADERS, lambda message: message.headers()),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])


class Slice(NamedTuple):
    """The offsets of one partition from `start` up to but without `stop`."""

    partition: int
    start: int
    stop: int


def read(
    consumer: Consumer, topic: str, slices: Sequence[Slice], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The committed messages of slices, each of another partition.

    A slice ends where the client has come past its end, not after a number of messages: markers of transactions, and
    messages of aborted ones, have offsets and are not handed over.
    """
    left = {part.partition: part.stop for part in slices if part.start < part.stop}
    where = client().TopicPartition
    consumer.assign([where(topic, part.partition, part.start) for part in slices if part.partition in left])
    heard = time.monotonic()
    while left:
        found: list[Any] = consumer.consume(limits.KAFKA_BATCH_ROWS_MAX, limits.KAFKA_BATCH_MS / 1000)
        messages = [message for message in found if message.error() is None]
        inside = [m for m in messages if m.offset() < left.get(m.partition(), 0)]
        reached = {message.partition(): message.offset() + 1 for message in messages} | _ends(found)
        if inside:
            yield _columns(inside, columns)
        if found:
            heard = time.monotonic()
        elif time.monotonic() - heard > limits.KAFKA_OUTAGE_MS_MAX / 1000:
            raise Outage(f"nothing came for {limits.KAFKA_OUTAGE_MS_MAX / 1000:g} s, and more is there")
        done = [partition for partition, stop in left.items() if reached.get(partition, 0) >= stop]
        if done:
            left = {partition: stop for partition, stop in left.items() if partition not in done}
            consumer.incremental_unassign([where(topic, partition) for partition in done])


def _ends(found: Sequence[Any]) -> dict[int, int]:
    """By partition, the end of it if the client has come there; every other event is an error."""
    ends: dict[int, int] = {}
    for event in found:
        error = event.error()
        if error is None:
            continue
        if error.name() == "_PARTITION_EOF":
            ends[event.partition()] = event.offset()
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            raise Vanished(event.partition(), error.str())
        elif not isinstance(wrong := explained(error), Outage):
            raise wrong
    return ends


def _columns(messages: Sequence[Any], names: Sequence[str]) -> pa.RecordBatch:
    arrays = []
    for name in names:
        kind, get = COLUMNS[name]
        values = [get(message) for message in messages]
        if name == "_timestamp":
            arrays.append(_timestamps(values))
        elif name == "_headers":
            arrays.append(_headers(values))
        else:
            arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, list(names))


def _timestamps(values: Sequence[Any]) -> pa.Array:
    """The client says of which kind a timestamp is, and 0 if there is none."""
    kinds, moments = np.array(values, np.int64).T
    return pa.array(moments, pa.timestamp("ms"), mask=kinds == client().TIMESTAMP_NOT_AVAILABLE)


def _headers(values: Sequence[Any]) -> pa.Array:
    """Null where there are none; a key may be there twice."""
    lengths = np.array([len(headers or ()) for headers in values])
    flat = [header for headers in values for header in headers or ()]
    entries = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        ["key", "value"],
    )
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, entries, mask=pa.array(lengths == 0))


def read_committed_rows(access: Access, topic: str, settle_s: float = 0) -> pa.Table:
    """All messages of a topic that a reader of committed ones sees, in the order of their partitions and offsets.

    A commit is seen some moments after it was confirmed: `settle_s` is how long to wait for what is undecided.
    """
    cluster = Cluster(access)
    bounds = cluster.patiently(lambda: cluster.bounds(topic))
    deadline = time.monotonic() + settle_s
    while time.monotonic() < deadline and not _settled(cluster, topic, bounds.offsets):
        time.sleep(limits.KAFKA_BATCH_MS / 1000)
        bounds = cluster.bounds(topic)
    slices = [Slice(partition, *between) for partition, between in bounds.offsets.items()]
    consumer = access.consumer("holdfast")
    try:
        found = pa.Table.from_batches(read(consumer, topic, slices, SCHEMA.names), SCHEMA)
    finally:
        consumer.close()
    return found.sort_by([("_partition", "ascending"), ("_offset", "ascending")])


def _settled(cluster: Cluster, topic: str, offsets: Any) -> bool:
    written = cluster.written(topic, list(offsets))
    return all(written[partition] <= end for partition, (_, end) in offsets.items())


@dataclass(frozen=True)
class Outgoing:
    """Messages to be written, as columns of one length."""

    values: pa.Array  # binary or string
    keys: pa.Array | None = None
    timestamps_ms: pa.Array | None = None
    headers: pa.Array | None = None  # of the type HEADERS, or what can be cast to it


def produce(producer: Producer, topic: str, out: Outgoing) -> None:
    """Hand messages to the client, which sends them in the background; a full queue is waited for."""
    number = len(out.values)
    values = _pieces(out.values)
    keys = repeat(None, number) if out.keys is None else _pieces(out.keys)
    extras = _extras(out, number)
    for value, key, extra in zip(values, keys, extras, strict=True):
        while True:
            try:
                producer.produce(topic, value, key, **extra)
                break
            except BufferError:
                producer.poll(limits.KAFKA_BATCH_MS / 1000)
    producer.poll(0)


def _pieces(array: pa.Array) -> list[bytes | None]:
    """The values of a binary or string array, cut from its buffer."""
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    whole = data.to_pybytes() if data is not None else b""
    pieces: list[bytes | None] = [whole[start:stop] for start, stop in pairwise(ends)]
    for index in np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).tolist():
        pieces[index] = None
    return pieces


def _extras(out: Outgoing, number: int) -> Iterator[dict[str, Any]]:
    """What else the client is told of each message; nothing about most of them."""
    if out.timestamps_ms is None and out.headers is None:
        yield from repeat({}, number)
        return
    times = repeat(None, number) if out.timestamps_ms is None else out.timestamps_ms.to_pylist()
    headers = repeat(None, number) if out.headers is None else out.headers.cast(HEADERS).to_pylist()
    for moment, named in zip(times, headers, strict=True):
        extra: dict[str, Any] = {} if moment is None else {"timestamp": moment}
        yield extra if not named else {**extra, "headers": [(one["key"], one["value"]) for one in named]}
