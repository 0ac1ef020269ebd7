"""A stream of Structured Streaming as a source: a query logs its micro-batches, and a batch of the log is an item.

One process runs the query: the one that leads the stages which read the source. Every other only reads the log. From
the log on a row is read exactly once; how a row gets into the log is between Spark, the connector and the checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.streaming import StreamingQuery

from holdfast.core import limits
from holdfast.core.errors import CodeError, FlowError, HoldfastError, InputError, PlanError
from holdfast.flow.streams import StreamSource
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import Limits, Source, Taken
from holdfast.sources.files import unglobbed
from holdfast.sources.parquet_files import signature
from holdfast.sources.stream_log import BatchLogger, StreamLog, identity_of
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.epoch import SparkJobError
from holdfast.spark.schemas import parse_schema
from holdfast.storage.atomic import write_atomic

# Another process still adds to the checkpoint. It is deposed, and its next batch is refused: one tries again.
_OTHER_QUERY = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected")

# What a connector says when the other side does not answer: the same may work later.
_AWAY = ("java.net.", "TimeoutException", "DisconnectException")

_IDLE = "idle"


class SparkStream(Source):
    """The micro-batches of one streaming query, as far as they are logged."""

    def __init__(self, name: str, description: StreamSource, root: Path, run: Callable[[], int]) -> None:
        self._name = name
        self._description = description
        self._schema = parse_schema(f"source {name!r}", description.schema)
        self._arrow = arrow_schema(name, self._schema)
        self._columns = signature(self._arrow)
        self._log = StreamLog(root)
        self._run = run  # of the flow, by number: what an earlier one has said of its end does not count
        self._again: Callable[[], StreamingQuery] | None = None
        self._query: StreamingQuery | None = None
        self._starts = 0
        self._raised: HoldfastError | None = None
        self._bytes: dict[int, int] = {}
        self._lock = Lock()
        self._asking: Thread | None = None
        self._nothing_after: int | None = None  # the batch after which a trigger has found nothing

    def schema(self) -> t.StructType:
        """The declared columns."""
        return self._schema

    def start(self, spark: SparkSession, generation: int) -> None:
        """Run the query from here on, under a generation."""
        self._log.claim(generation)
        checkpoint = self._log.checkpoint(generation, self._description.resumes)
        logger = BatchLogger(
            self._log, generation, checkpoint, self._description.resumes, self._arrow, self._columns
        )
        frame = self._frame(spark)
        # A Connect server runs the function in a process of its own, where nothing of this one is.
        called = logger if _is_remote(frame) else self._remembering(logger)

        def begin() -> StreamingQuery:
            writer = frame.writeStream.foreachBatch(called).option("checkpointLocation", str(checkpoint))
            writer = writer.queryName(f"holdfast-{self._name}-{generation}")
            if self._description.trigger_us is not None:
                writer = writer.trigger(
                    processingTime=f"{self._description.trigger_us // 1_000} milliseconds"
                )
            return writer.start()

        self._again = begin
        self._begin()

    def stop(self) -> None:
        """End the query; a batch that it is about to log is logged first, within bounds."""
        query, self._query = self._query, None
        if query is None:
            return
        self._log.hold(False)
        try:
            deadline = time.monotonic() + limits.STREAM_STOP_MS_MAX / 1000
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(limits.WATCH_MS / 1000)
            query.stop()
        except Exception:
            # A session that is gone has taken its query with it, and why it is gone is told by whoever needed it.
            return

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """The batches of the log that were not taken yet."""
        self._check()
        there = self._log.numbers()
        found = [
            self._item(number)
            for number in [n for n in there if identity_of(n) not in after.known][: most.items]
        ]
        if self._query is not None:
            self._hold_back([number for number in there if identity_of(number) in after.known], after.unread)
        return [item for item in found if item is not None]

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The rows of batches as they were logged."""
        paths = [unglobbed(str(path)) for path in self.checked(items)]
        if not paths:
            return spark.createDataFrame([], self._schema)
        return spark.read.schema(self._schema).parquet(*paths)

    def direct(self, items: Sequence[Item]) -> bool:
        """The log is written in the declared types."""
        return all(item.body["columns"] == self._columns for item in items)

    def checked(self, items: Sequence[Item]) -> list[Path]:
        """The files of batches, found to be there in their length."""
        return [path for item in items for path in self._checked(item)]

    def commit(self, last: Item) -> None:
        """Delete what no stage will read again."""
        self._log.trim(int(last.identity))
        self._bytes = {number: size for number, size in self._bytes.items() if number > int(last.identity)}

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """As the flow says."""
        return None, self._description.max_rows_per_epoch

    def more_to_come(self) -> bool:
        """Whether the stream may have more: until a trigger has found nothing new behind the last batch."""
        newest = max(self._log.numbers(), default=-1)
        if self._query is None:
            return self._told_idle() != [self._run(), newest]
        self._check()
        if self._nothing_after != newest:
            self._ask(newest)
            return True
        told = [self._run(), newest]
        if self._told_idle() != told:
            write_atomic(self._log.root / _IDLE, json.dumps(told).encode())
        return False

    def _frame(self, spark: SparkSession) -> DataFrame:
        try:
            frame = self._description.make(spark)
        except Exception as error:
            # The user's code, a connector's, or what the gateway under Spark says of it: its first lines tell.
            raise PlanError(
                f"the stream of source {self._name!r} cannot be made: {' '.join(str(error).splitlines()[:2])}",
                operation="start stream",
                hint="Look at what hf.read_stream is given; a connector's package must be on Spark's path.",
            ) from error
        if not getattr(frame, "isStreaming", False):
            raise PlanError(
                f"what hf.read_stream is given for {self._name!r} makes no streaming DataFrame",
                operation="start stream",
                hint="Begin it with spark.readStream.",
            )
        found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for field in self._schema.fields:
            if found.get(field.name) != field.dataType.simpleString():
                raise PlanError(
                    f"source {self._name!r} declares {field.name} {field.dataType.simpleString()}, and the stream has "
                    f"{found.get(field.name, 'no such column')}",
                    operation="start stream",
                    hint=f"The stream's columns are {', '.join(f'{n} {kind}' for n, kind in found.items())}.",
                )
        return frame

    def _begin(self) -> None:
        assert self._again is not None
        self._starts += 1
        self._raised = None
        try:
            self._query = self._again()
        except PySparkException as error:
            raise self._failed(error) from error

    def _remembering(self, logger: BatchLogger) -> Callable[[DataFrame, int], None]:
        """Spark gives an error of ours back as text: it is kept as what it is."""

        def log(df: DataFrame, batch: int) -> None:
            try:
                logger(df, batch)
            except HoldfastError as error:
                self._raised = error
                raise

        return log

    def _check(self) -> None:
        """Raise if the query has ended by itself."""
        with self._lock:
            query = self._query
            if query is None or query.isActive:
                return
            if self._raised is not None and not _is_of_the_query(self._raised):
                raise self._raised
            error = self._raised or query.exception()
            text = str(error)
            others = self._description.resumes and any(words in text for words in _OTHER_QUERY)
            if others and self._starts < limits.ATTEMPTS_PER_PLAN_MAX:
                return self._begin()
            raise self._failed(error) from error

    def _failed(self, error: Exception | None) -> InputError:
        text = f"{error} {error.__cause__ or ''}" if error else "it ended without an error"
        told = text.partition("=== Streaming Query ===")[0].strip()
        resuming = " If its connector cannot resume, as a socket cannot, say resumes=False."
        return InputError(
            f"the stream of source {self._name!r} has failed: {told}",
            operation="stream",
            heals=any(words in text for words in _AWAY),
            hint="Mend what it says and run the flow again: what is in the log is kept, and the query goes on behind it."
            + (resuming if self._description.resumes else ""),
        )

    def _item(self, number: int) -> Item | None:
        """A batch as an item; None for one that was read and let go of since it was listed."""
        try:
            facts = self._log.facts(number)
        except FileNotFoundError:
            return None
        files = facts["files"]
        self._bytes[number] = sum(file["bytes"] for file in files)
        rows = sum(file["rows"] for file in files)
        return Item(identity_of(number), rows, self._bytes[number], facts)

    def _checked(self, item: Item) -> list[Path]:
        if item.body["columns"] != self._columns:
            raise InputError(
                f"source {self._name!r}: batch {int(item.identity)} was logged with other columns than are declared now",
                operation="read",
                hint="Run the flow as it was until it is idle, and change the schema then.",
            )
        paths = []
        for file in item.body["files"]:
            path = self._log.batches / item.identity / file["path"]
            if not path.is_file() or path.stat().st_size != file["bytes"]:
                raise InputError(
                    f"source {self._name!r}: {path} is gone or cut off, and it is needed",
                    operation="read",
                    hint="Bring it back from a backup: nothing else has these rows.",
                )
            paths.append(path)
        return paths

    def _hold_back(self, taken: Sequence[int], unread: int) -> None:
        """Let the stream wait while the flow has much of it to read."""
        unread_batches = taken[-unread:] if unread else ()
        for number in unread_batches:
            if number not in self._bytes:
                self._item(number)
        waiting = sum(self._bytes.get(number, 0) for number in unread_batches)
        held = waiting > limits.UNREAD_BYTES_MAX
        if held != self._log.is_held:
            self._log.hold(held)

    def _ask(self, newest: int) -> None:
        """Find out whether a trigger finds nothing; Spark answers when one has."""
        query = self._query
        if query is None or (self._asking is not None and self._asking.is_alive()):
            return

        def ask() -> None:
            try:
                query.processAllAvailable()
            except PySparkException:
                return  # the query has failed, which is seen where it is looked at
            if max(self._log.numbers(), default=-1) == newest:
                self._nothing_after = newest

        self._asking = Thread(target=ask, name=f"idle {self._name}", daemon=True)
        self._asking.start()

    def _told_idle(self) -> object:
        """What the process that runs the query has said of it: in which run, and behind which batch, it is idle."""
        try:
            return json.loads((self._log.root / _IDLE).read_bytes())
        except FileNotFoundError:
            return None


def _is_remote(frame: DataFrame) -> bool:
    return type(frame).__module__.startswith("pyspark.sql.connect")


def _is_of_the_query(error: HoldfastError) -> bool:
    """Whether it is Spark that could not do the query; code of the user's that raised is told as such."""
    return isinstance(error, SparkJobError | FlowError) and not isinstance(error, CodeError)
