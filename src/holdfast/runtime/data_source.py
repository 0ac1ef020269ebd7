"""`format("holdfast")`: the rows of a channel, or the state of a stage, as DataFrames of any Spark session.

Invariants: only what is committed is read; a batch is planned at one epoch, and all its tasks read that epoch; a
streaming query reads every epoch once, in order, or fails and says which epochs are gone. Files that a planned read
needs are pinned for a minute; a reader with a name has a cursor in the ledger, and keeps them for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from sqlalchemy.engine import Connection

from holdfast.core.errors import FlowError, LedgerError, StorageError
from holdfast.core.ids import new_attempt_id
from holdfast.ledger import files, pins, readers
from holdfast.ledger.epochs import known_stage
from holdfast.ledger.inputs import Segment
from holdfast.ledger.ledger import reading
from holdfast.ledger.location import may_write
from holdfast.runtime.snapshot import look, snapshot_of
from holdfast.storage.checksums import fault_at_first

FORMAT = "holdfast"

_OPTIONS = ("path", "channel", "port", "state", "epoch", "startingEpoch", "reader", "epochAs")


@dataclass(frozen=True)
class Wanted:
    """What the options ask for."""

    root: Path
    channel: str | None
    state: str | None
    port: str
    epoch: int | None
    starting: str
    reader: str | None
    epoch_as: str | None

    @property
    def stage(self) -> str:
        """The stage whose rows or state they are."""
        return self.channel or self.state or ""

    @property
    def input(self) -> str:
        """The channel as the ledger spells it."""
        return f"channel:{self.channel}.{self.port}"


class HoldfastSource(DataSource):
    """The data source that `hf.register(spark)` makes known."""

    @classmethod
    def name(cls) -> str:
        """As `format(...)` has it."""
        return FORMAT

    def schema(self) -> t.StructType:
        """The columns of the newest segment that is kept, or of the state."""
        wanted = wanted_of(self.options)
        if wanted.state is not None:
            return _spark(snapshot_of(wanted.root, wanted.stage, wanted.epoch).view.schema)
        found = _spark(_segment_schema(wanted))
        return found.add(wanted.epoch_as, t.LongType()) if wanted.epoch_as else found

    def reader(self, schema: t.StructType) -> DataSourceReader:
        """Reads what is there now."""
        wanted = wanted_of(self.options)
        if wanted.reader is not None:
            raise _refused("option 'reader' is for streams", "Read with spark.readStream, or without it.")
        return StateReader(wanted, schema) if wanted.state is not None else ChannelReader(wanted, schema)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads epoch after epoch."""
        wanted = wanted_of(self.options)
        if wanted.channel is None:
            raise _refused(
                "a state cannot be read as a stream", "Read it with spark.read, or stream a channel."
            )
        return ChannelStream(wanted, schema)


@dataclass(frozen=True)
class SegmentPart(InputPartition):
    """A file of an epoch."""

    path: str
    epoch: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class SlotsPart(InputPartition):
    """A range of slots of a state."""

    slots: tuple[int, int]


@dataclass(frozen=True)
class ChannelReader(DataSourceReader):
    """The rows of committed epochs that a channel still keeps."""

    wanted: Wanted
    columns: t.StructType

    def partitions(self) -> list[SegmentPart]:
        """The files, from the first epoch asked for up to the newest."""
        with reading(self.wanted.root) as tx:
            start, stop = _range(tx, self.wanted)
        return _parts(self.wanted, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        return _rows(self.wanted, self.columns, partition)


@dataclass(frozen=True)
class ChannelStream(DataSourceStreamReader):
    """The same, epoch after epoch; an offset is the epoch that is read next."""

    wanted: Wanted
    columns: t.StructType

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a query without a checkpoint begins; a reader with a name keeps the channel from there on."""
        wanted = self.wanted
        if wanted.reader is None:
            with reading(wanted.root) as tx:
                return {"epoch": _range(tx, wanted)[0]}
        with readers.writing(wanted.root) as tx:
            epoch, stop = _range(tx, wanted)
            readers.kept_segments(tx, wanted.stage, wanted.port, epoch, stop)
            readers.enrol(tx, wanted.reader, wanted.input, epoch)
            return {"epoch": epoch}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """All that is committed and may leave its stage."""
        with reading(self.wanted.root) as tx:
            return {"epoch": readers.outlet(tx, self.wanted.stage).head + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[SegmentPart]:
        """The files of a range of epochs."""
        return _parts(self.wanted, start["epoch"], end["epoch"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        return _rows(self.wanted, self.columns, partition)

    def commit(self, end: dict[str, int]) -> None:
        """What lies below need not be kept for this reader any more."""
        wanted = self.wanted
        if wanted.reader is not None:
            with readers.writing(wanted.root) as tx:
                readers.advance(tx, wanted.reader, wanted.input, end["epoch"])


class StateReader(DataSourceReader):
    """The state of a stage at one epoch: the one asked for, or the newest when the read is planned."""

    def __init__(self, wanted: Wanted, columns: t.StructType) -> None:
        self._wanted, self._columns = wanted, columns
        self._epoch = snapshot_of(wanted.root, wanted.stage, wanted.epoch).epoch

    def partitions(self) -> list[SlotsPart]:
        """Ranges of slots, of a bounded number of rows each."""
        self._pin()
        ranges = snapshot_of(self._wanted.root, self._wanted.stage, self._epoch).ranges
        return [SlotsPart(slots) for slots in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range, from the layers that hold that epoch's state now."""
        if not isinstance(partition, SlotsPart):
            return
        slots = partition.slots
        _, rows = look(
            self._wanted.root, self._wanted.stage, self._epoch, lambda snapshot: snapshot.read(slots)
        )
        yield from rows.select(self._columns.names).cast(_arrow(self._columns)).to_batches()

    def _pin(self) -> None:
        """A merge makes the state of an epoch before its end unreadable, once its layers are swept."""
        root, stage = self._wanted.root, self._wanted.stage
        if not may_write(root):
            return
        with readers.writing(root) as tx:
            layers, _ = files.cover(files.live_layers(tx, known_stage(tx, stage)), self._epoch)
            pins.pin(tx, _pin_name(), [layer.id for layer in layers], [])


def wanted_of(options: Mapping[str, str]) -> Wanted:
    """The options, checked."""
    known = {name.lower() for name in _OPTIONS}
    unknown = [name for name in options if name.lower() not in known]
    if unknown:
        raise _refused(f"there is no option {unknown[0]!r}", f"The options are {', '.join(_OPTIONS)}.")
    given = {name: options.get(name) for name in _OPTIONS}
    path, channel, state, epoch = (given[name] for name in ("path", "channel", "state", "epoch"))
    if not path:
        raise _refused("option 'path' is missing", "Name the flow's work directory.")
    if (channel is None) == (state is None):
        raise _refused(
            "one of the options 'channel' and 'state' is needed",
            "Name the stage whose rows, or whose state, is to be read.",
        )
    other = [name for name in ("port", "startingEpoch", "reader", "epochAs") if given[name] is not None]
    if state is not None and other:
        raise _refused(f"option {other[0]!r} is for channels", "A state has option 'epoch' alone.")
    if channel is not None and epoch is not None:
        raise _refused("option 'epoch' is for a state", "A channel has option 'startingEpoch'.")
    starting = given["startingEpoch"] or "earliest"
    if starting not in ("earliest", "latest"):
        _number("startingEpoch", starting)
    return Wanted(
        Path(path),
        channel,
        state,
        given["port"] or "out",
        None if epoch is None else _number("epoch", epoch),
        starting,
        given["reader"],
        given["epochAs"],
    )


def _number(option: str, text: str) -> int:
    if not text.isdigit():
        also = ", earliest or latest" if option == "startingEpoch" else ""
        raise _refused(f"option {option!r} is {text!r}", f"It is the number of an epoch{also}.")
    return int(text)


def _refused(what: str, hint: str) -> FlowError:
    return FlowError(what, operation=f"format {FORMAT!r}", hint=hint)


def _range(tx: Connection, wanted: Wanted) -> tuple[int, int]:
    """The epoch to begin with, and the one after the newest."""
    row = readers.outlet(tx, wanted.stage)
    stop = row.head + 1
    match wanted.starting:
        case "earliest":
            return readers.first_kept(tx, row, wanted.port), stop
        case "latest":
            return stop, stop
        case number:
            readers.check_epoch(row, int(number))
            return int(number), stop


def _parts(wanted: Wanted, start: int, stop: int) -> list[SegmentPart]:
    """The files of epochs, pinned in the transaction that finds them to be there."""
    if start >= stop:
        return []
    if may_write(wanted.root):  # else nobody can pin; neither does anybody sweep such a directory
        with readers.writing(wanted.root) as tx:
            found = readers.kept_segments(tx, wanted.stage, wanted.port, start, stop)
            pins.pin(tx, _pin_name(), [], [segment.id for segment in found])
    else:
        with reading(wanted.root) as tx:
            found = readers.kept_segments(tx, wanted.stage, wanted.port, start, stop)
    return _parts_of(found)


def _parts_of(segments: Sequence[Segment]) -> list[SegmentPart]:
    return [
        SegmentPart(file["path"], segment.epoch, file["bytes"], file["crc32"])
        for segment in segments
        for file in segment.files
    ]


def _rows(wanted: Wanted, columns: t.StructType, part: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, SegmentPart):
        return  # where there is nothing to read, Spark runs a task with a partition of its own
    target = _arrow(columns)
    stored = [name for name in columns.names if name != wanted.epoch_as]
    _check(wanted, part)
    try:
        with pq.ParquetFile(wanted.root / part.path) as opened:
            for batch in opened.iter_batches(columns=stored):
                found = pa.table(batch.columns, names=batch.schema.names)
                if wanted.epoch_as in columns.names:
                    found = found.append_column(wanted.epoch_as, pa.repeat(part.epoch, batch.num_rows))
                yield from found.select(columns.names).cast(target).to_batches()
    except FileNotFoundError as error:
        raise StorageError(
            f"{part.path} was trimmed while it was waiting to be read",
            operation="read channel",
            stage=wanted.stage,
            epoch=part.epoch,
            hint="What a read needs is kept for a minute. Read with option 'reader', for which it is kept longer.",
        ) from error


def _check(wanted: Wanted, part: SegmentPart) -> None:
    """A file of other bytes than were written is not read; one that is missing is told of by whoever opens it."""
    wrong = fault_at_first(wanted.root, {"path": part.path, "bytes": part.bytes, "crc32": part.crc32})
    if wrong and (wanted.root / part.path).exists():
        raise StorageError(
            f"{part.path} {wrong}",
            operation="read channel",
            stage=wanted.stage,
            epoch=part.epoch,
            hint="`holdfast scrub --repair` marks it as lost; the flow makes it again when it runs.",
        )


def _segment_schema(wanted: Wanted) -> pa.Schema:
    """The columns of the newest segment."""
    with reading(wanted.root) as tx:
        row = known_stage(tx, wanted.stage)
        first = readers.first_kept(tx, row, wanted.port)
        found: list[Segment] = readers.kept_segments(tx, wanted.stage, wanted.port, first, row.head + 1)
    parts = _parts_of(found)
    if not parts:
        raise LedgerError(
            "the channel keeps no rows, so that its columns are not known",
            operation="read channel",
            stage=wanted.stage,
            hint='Say what they are: .schema("id string, amount double"). What every consumer has read is not kept; '
            "a reader with a name keeps it.",
        )
    _check(wanted, parts[-1])
    return pq.read_schema(wanted.root / parts[-1].path).remove_metadata()


def _spark(columns: pa.Schema) -> t.StructType:
    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def _arrow(columns: t.StructType) -> pa.Schema:
    """As Spark wants it to the letter."""
    return to_arrow_schema(columns, timezone="UTC")


def _pin_name() -> str:
    return f"{readers.PINS}{new_attempt_id()}"
