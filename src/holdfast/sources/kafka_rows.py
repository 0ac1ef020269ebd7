"""The rows of slices of a topic on Spark: tasks read messages, and payloads become columns.

Tasks give back messages as they are, and Spark parses JSON, as it does that of files. Only an Arrow payload, which
holds many rows, is opened in the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.clients.kafka import Access, NoTopic, Outage, Refusal, Vanished
from holdfast.clients.kafka_messages import HEADERS, Slice, read
from holdfast.core.errors import HoldfastError, InputError
from holdfast.flow.endpoints import FilesSource
from holdfast.flow.kafka import KafkaSource
from holdfast.sources.text_frames import FILE, LINE, TextFrames
from holdfast.spark.bind import QUARANTINED
from holdfast.spark.task import told_across

VALUE = "value"
BYTES = t.StructType().add(VALUE, t.BinaryType())
_PLACE = t.StructType().add("_partition", t.IntegerType()).add("_offset", t.LongType())
_METADATA = [
    t.StructField("_key", t.BinaryType()),
    t.StructField("_topic", t.StringType()),
    *_PLACE.fields,
    t.StructField("_timestamp", t.TimestampType()),
]
_HEADER = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
_HEADERS = [t.StructField("_headers", t.ArrayType(_HEADER))]

_ARROW = pa.schema(
    [
        (VALUE, pa.binary()),
        ("_key", pa.binary()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_headers", HEADERS),
    ]
)
_HINT = (
    'Nothing of this epoch was committed. A message cannot be mended: set on_error="quarantine" on the source, to go'
    " on without such messages and keep them."
)


@dataclass(frozen=True)
class Complaints:
    """What a source says when its topic cannot be read."""

    source: str
    topic: str
    on_lost: str

    def of(self, error: Exception, slices: Sequence[Slice]) -> HoldfastError:
        """Our error for one of the client's, while slices were asked for."""
        if isinstance(error, Vanished):
            return self.lost([part for part in slices if part.partition == error.partition])
        if isinstance(error, NoTopic):
            return self._of(f"there is no topic {self.topic!r}", "read", hint="Make it, or mend the name.")
        if isinstance(error, Outage):
            return self._of(
                f"the servers of topic {self.topic!r} do not answer: {error}",
                "read",
                heals=True,
                hint="Nothing was lost: the flow goes on where it was when they are back.",
            )
        return self._of(f"topic {self.topic!r} cannot be read: {error}", "read")

    def lost(self, slices: Sequence[Slice], planned: bool = True) -> HoldfastError:
        """Offsets were deleted that nobody had read, or that are needed again."""
        named = "; ".join(f"partition {p}, offsets {start} to {stop - 1}" for p, start, stop in slices[:5])
        passes = planned and self.on_lost == "gap"
        hint = (
            "If no committed epoch has read them, the next start passes over them and counts them."
            if passes
            else "Keep messages for longer than the flow may be down (retention.ms of the topic). To go on without "
            'them, set on_lost="gap" on the source: they are counted and passed over.'
        )
        what = f"topic {self.topic!r} no longer has messages that are needed: {named}"
        return self._of(what, "read", heals=passes, hint=hint)

    def other_topic(self) -> HoldfastError:
        """The topic was deleted and made anew: offsets mean other messages."""
        return self._of(
            f"topic {self.topic!r} was deleted and made anew since the flow began to read it",
            "read",
            hint="Its offsets mean other messages now. Use a new work directory to read the new topic.",
        )

    def _of(
        self, what: str, operation: str, *, heals: bool = False, hint: str | None = None
    ) -> HoldfastError:
        return InputError(f"source {self.source!r}: {what}", operation=operation, heals=heals, hint=hint)


@dataclass(frozen=True)
class Payloads:
    """What becomes of the messages of one source."""

    complaints: Complaints
    description: KafkaSource
    declared: t.StructType  # the columns of the payload
    arrow: pa.Schema  # the same, as Arrow has them
    access: Access
    group: str

    @property
    def schema(self) -> t.StructType:
        """The columns of the payload and those about the message."""
        return t.StructType([*self.declared.fields, *self._about().fields])

    def rows(self, spark: SparkSession, tasks: Sequence[tuple[Slice, ...]]) -> DataFrame:
        """The rows of slices."""
        if not tasks:
            return spark.createDataFrame([], self.schema)
        if self.description.payload == "json":
            return self._frames().kept(self._parsed(spark, tasks))
        return self._messages(spark, tasks, self.schema)

    def malformed(self, spark: SparkSession, tasks: Sequence[tuple[Slice, ...]]) -> DataFrame:
        """The messages that are no JSON object of the declared columns."""
        if not tasks:
            return spark.createDataFrame([], QUARANTINED)
        return self._frames().aside(self._parsed(spark, tasks))

    def _about(self) -> t.StructType:
        metadata = _METADATA if self.description.metadata else []
        return t.StructType([*metadata, *(_HEADERS if self.description.headers else [])])

    def _frames(self) -> TextFrames:
        """Payloads are parsed, and found to be malformed, as the lines of JSON files are."""
        lines = FilesSource(
            self.description.topic, str(self.description.schema), "json", self.description.on_error
        )
        source, carried = self.complaints.source, tuple(self._about().names)
        return TextFrames(source, lines, self.declared, _HINT, carried)

    def _parsed(self, spark: SparkSession, tasks: Sequence[tuple[Slice, ...]]) -> DataFrame:
        """A payload that is no UTF-8 is shown in hexadecimal digits, which are no JSON object."""
        columns = {field.name: field for field in [*BYTES, *_PLACE, *self._about()]}
        messages = self._messages(spark, tasks, t.StructType(list(columns.values())))
        value, text = f.col(VALUE), f.col(VALUE).cast("string")
        where = f.concat_ws("/", f.lit(self.description.topic), f.col("_partition"), f.col("_offset"))
        line = f.when(f.is_valid_utf8(text) | value.isNull(), text).otherwise(f.hex(value))
        about = [f.col(name) for name in self._about().names]
        return self._frames().json(messages.select(where.alias(FILE), line.alias(LINE), *about))

    def _messages(
        self, spark: SparkSession, tasks: Sequence[tuple[Slice, ...]], columns: t.StructType
    ) -> DataFrame:
        opened = Opened(self.complaints, self.arrow) if self.description.payload == "arrow" else None
        names = tuple(self._about().names if opened else columns.names)
        task = ReadSlices(self.complaints, self.access, self.group, tuple(tasks), names, opened)
        return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(task, columns)


@dataclass(frozen=True)
class ReadSlices:
    """Runs in a task: reads the slices whose number it is given."""

    complaints: Complaints
    access: Access
    group: str
    tasks: tuple[tuple[Slice, ...], ...]
    columns: tuple[str, ...]  # what is wanted of each message
    opened: Callable[[pa.RecordBatch, Sequence[str]], Iterator[pa.RecordBatch]] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_across():
            for batch in batches:
                for number in np.asarray(batch.column(0)):
                    yield from self._read(self.tasks[int(number)])

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        needed = self.columns if self.opened is None else (VALUE, *_with_place(self.columns))
        consumer = self.access.consumer(self.group)
        try:
            for batch in read(consumer, self.complaints.topic, slices, needed):
                if self.opened is None:
                    yield _as_declared(batch, self.columns)
                else:
                    yield from self.opened(batch, self.columns)
        except (Refusal, Outage) as error:
            raise self.complaints.of(error, slices) from error
        finally:
            consumer.close()


@dataclass(frozen=True)
class Opened:
    """Opens Arrow payloads: a stream of Arrow's a message, with any number of rows."""

    complaints: Complaints
    schema: pa.Schema

    def __call__(self, messages: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        values = messages.column(VALUE)
        filled = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        tables = [self._rows(messages, int(index)) for index in filled]
        if not tables:
            return
        lengths = [table.num_rows for table in tables]
        about = _as_declared(messages, columns).take(pa.array(np.repeat(filled, lengths)))
        rows = pa.concat_tables(tables).combine_chunks()
        for name in columns:
            rows = rows.append_column(name, about.column(name))
        yield from rows.to_batches()

    def _rows(self, messages: pa.RecordBatch, index: int) -> pa.Table:
        """One message's; columns that are not declared are passed over."""
        try:
            with pa.ipc.open_stream(messages.column(VALUE)[index].as_buffer()) as stream:
                return stream.read_all().select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, KeyError, OSError) as error:
            partition, offset = (
                int(np.asarray(messages.column(c))[index]) for c in ("_partition", "_offset")
            )
            raise InputError(
                f"source {self.complaints.source!r}: the message at {self.complaints.topic}/{partition}/{offset} is no "
                f"Arrow stream with the declared columns: {error}",
                operation="read",
                hint="Nothing of this epoch was committed. Declare the columns as they are written, or leave such "
                'messages out with payload="bytes" and a transform.',
            ) from error


def _with_place(columns: Sequence[str]) -> list[str]:
    return [*columns, *(name for name in ("_partition", "_offset") if name not in columns)]


def _as_declared(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Exactly the columns, in the types that Spark is told of."""
    schema = pa.schema([_ARROW.field(name) for name in columns])
    arrays = [batch.column(name).cast(schema.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
