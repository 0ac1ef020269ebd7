"""The log of a stream: its micro-batches, each whole or not there, in the order in which they are read.

    streams/NAME/
      claims/0000000007          the generation that may add batches; of several, the highest
      checkpoint/                Spark's own, of a stream that resumes; else checkpoint-0000000007/
      log/0000000012/            a batch: Parquet files, and batch.json, which names them
      log/.0000000012.ID/        one that is being written
      hold                       while the flow is far behind

Invariants:

1. A batch appears in one rename that replaces nothing, when its bytes are durable: however often Spark runs batch N,
   the first that was whole is batch N. A batch that a deposed process adds at the last moment is therefore batch N
   like any other, or is thrown away.
2. What a batch was to read is durable before the batch is: the checkpoint's files are fsynced first. Otherwise a power
   loss could have Spark plan a longer batch N, whose rows beyond those in the log would be lost.
3. A number is never used twice: the highest batch stays until there is a higher one.
4. A claim is a file of its own, named by its generation: no zombie's claim replaces that of its successor.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.channels.segments import SegmentWriter
from holdfast.core import limits
from holdfast.core.errors import FencedError, InputError, StorageError
from holdfast.core.ids import new_attempt_id
from holdfast.core.json import Json
from holdfast.spark.epoch import run_tagged
from holdfast.spark.keys import quoted
from holdfast.spark.task import RESULT, result_row, task_name
from holdfast.storage.atomic import (
    TargetExistsError,
    discard,
    fsync_dir,
    fsync_file,
    make_dirs,
    rename_without_replacing,
    write_new,
)

STREAMS = "streams"

_CLAIMS, _LOG, _HOLD, _FACTS = "claims", "log", "hold", "batch.json"
_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class StreamLog:
    """The log of one stream, for whoever writes or reads it."""

    root: Path

    @property
    def batches(self) -> Path:
        """Where the batches are."""
        return self.root / _LOG

    def claim(self, generation: int) -> None:
        """Be the one that may add batches; refused once a higher generation is."""
        make_dirs(self.root / _CLAIMS)
        make_dirs(self.batches)
        with suppress(TargetExistsError):
            write_new(self.root / _CLAIMS / _name(generation), b"")
        self.check_claim(generation)
        for claim in self._claims():
            if claim < generation:
                (self.root / _CLAIMS / _name(claim)).unlink(missing_ok=True)
        for draft in self.batches.glob(".*"):
            discard(draft)

    def check_claim(self, generation: int) -> None:
        """Raise for a process that another has followed."""
        newest = max(self._claims(), default=None)
        if newest is None:
            raise StorageError(
                f"{self.root} is not there",
                operation="log stream",
                hint="A Spark Connect server must see the work directory under the same path as its client.",
            )
        if newest != generation:
            raise FencedError(
                f"generation {newest} logs the stream in {self.root}, not generation {generation}",
                operation="log stream",
                hint="Nothing of this process is visible any more; it must stop.",
            )

    def checkpoint(self, generation: int, resumes: bool) -> Path:
        """Spark's checkpoint, new for every claim where the stream cannot resume; those that are of no use go."""
        found = set(self.root.glob(f"{_CHECKPOINT}*"))
        kept = self.root / (_CHECKPOINT if resumes else f"{_CHECKPOINT}-{_name(generation)}")
        if resumes and self.numbers() and kept not in found:
            raise InputError(
                f"{self.root} holds batches, and the checkpoint that they go with is not there",
                operation="start stream",
                hint="Bring it back from a backup. If the stream was read with resumes=False before, go on with that, "
                "or give the source another name.",
            )
        for other in found - {kept}:
            discard(other)
        make_dirs(kept)
        return kept

    def numbers(self) -> list[int]:
        """The batches that are there, in order."""
        try:
            return sorted(int(entry.name) for entry in os.scandir(self.batches) if entry.name[0] != ".")
        except FileNotFoundError:
            return []

    def facts(self, number: int) -> Json:
        """What a batch says of itself: its files with rows, bytes and checksum, and its columns."""
        found: Json = json.loads((self.batches / _name(number) / _FACTS).read_bytes())
        return found

    def add(self, draft: Path, number: int | None) -> None:
        """Show a batch that is whole and durable, under its number or the next one."""
        last = max(self.numbers(), default=-1)
        try:
            rename_without_replacing(draft, self.batches / _name(last + 1 if number is None else number))
        except TargetExistsError:
            if number is None:
                return self.add(draft, None)
            discard(draft)
        fsync_dir(self.batches)

    def trim(self, last: int) -> None:
        """Let go of batches up to one, but not of the highest that is there."""
        for number in self.numbers()[:-1]:
            if number <= last:
                # Renamed first: a batch of which a part is gone must not look like a batch.
                gone = self.batches / f".{_name(number)}.{new_attempt_id()}"
                with suppress(FileNotFoundError):
                    (self.batches / _name(number)).rename(gone)
                discard(gone)

    def hold(self, held: bool) -> None:
        """Have the stream wait before its next batch, or go on."""
        if held:
            (self.root / _HOLD).touch()
        else:
            (self.root / _HOLD).unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether the stream is to wait."""
        return (self.root / _HOLD).exists()

    def _claims(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self.root / _CLAIMS)]
        except FileNotFoundError:
            return []


@dataclass(frozen=True)
class BatchLogger:
    """What a query calls with every micro-batch. It holds no connection, so that a Connect server can run it too."""

    log: StreamLog
    generation: int
    checkpoint: Path
    resumes: bool
    schema: pa.Schema
    columns: str  # the signature of the schema

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Log a micro-batch, unless it is there already."""
        number = batch if self.resumes else None
        while self.log.is_held:
            self.log.check_claim(self.generation)
            time.sleep(limits.POLL_MS / 1000)
        self.log.check_claim(self.generation)
        if number in self.log.numbers():
            return
        draft = self.log.batches / f".{_name(batch)}.{new_attempt_id()}"
        draft.mkdir()
        try:
            self._write(df, draft)
            _settle(self.checkpoint)
            self.log.check_claim(self.generation)
            self.log.add(draft, number)
        except BaseException:
            discard(draft)
            raise

    def _write(self, df: DataFrame, draft: Path) -> None:
        chosen = df.select(*(quoted(name) for name in self.schema.names))
        writing = chosen.mapInArrow(_WriteRows(str(draft), self.schema), RESULT)
        reports = run_tagged(df.sparkSession, writing, f"holdfast-{draft.name}")
        files = [file for report in reports for file in report["files"]]
        for file in files:
            fsync_file(draft / file["path"])
        write_new(draft / _FACTS, json.dumps({"files": files, "columns": self.columns}).encode())
        fsync_dir(draft)


@dataclass(frozen=True)
class _WriteRows:
    """Writes a partition of a micro-batch, and says what it wrote."""

    draft: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _, name = task_name()
        writer = SegmentWriter(Path(self.draft), f"{name}.parquet", self.schema)
        for batch in batches:
            writer.write(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
        yield result_row({"files": writer.close()})


# By file of a checkpoint, the modification that this process has made durable.
_settled: dict[str, int] = {}


def _settle(checkpoint: Path) -> None:
    """Make what Spark has written to a checkpoint survive a power loss; it does not do so itself."""
    found = {path: mtime_ns for path, mtime_ns in _stamps(checkpoint) if mtime_ns is not None}
    new = [Path(path) for path, mtime_ns in found.items() if _settled.get(path) != mtime_ns]
    for path in new:
        _fsync_if_there(path)
    for directory in {above for path in new for above in path.parents if above.is_relative_to(checkpoint)}:
        fsync_dir(directory)
    for gone in _settled.keys() - found.keys():
        del _settled[gone]
    _settled.update(found)


def _stamps(checkpoint: Path) -> Iterator[tuple[str, int | None]]:
    for directory, _, names in os.walk(checkpoint):
        for name in names:
            path = os.path.join(directory, name)
            yield path, _mtime_ns(path)


def _mtime_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return None


def _fsync_if_there(path: Path) -> None:
    """Spark deletes what it no longer needs of a checkpoint at any time."""
    try:
        fsync_file(path)
    except StorageError:
        if path.exists():
            raise


def _name(number: int) -> str:
    """As a file name that sorts as the number does."""
    return f"{number:010d}"


def identity_of(number: int) -> str:
    """The item that a batch is."""
    return _name(number)
