"""A run: one immutable Arrow file of state rows, sorted by bucket, hash and key.

Bytes: an Arrow IPC file (uncompressed, so that it can be mapped) of one record batch. Its columns are
`_h`, then `_live` only where the run holds tombstones, the keys, the values. The bucket is not a column:
rows of a bucket stand together, and `RunInfo.buckets` says where each begins. The schema's metadata
counts the key columns (`holdfast.keys`) and says whether `_live` is there (`holdfast.live`); the batch's
custom metadata holds the Bloom filter of the hashes (`holdfast.bloom`). Behind the Arrow file stand the
checksums of its blocks (`storage/checksums.py`).

Invariants:
- A run is written once, under a name that did not exist, and never changes. So any process may map any run,
  and keep the map for as long as nobody has written to the file.
- A run that is missing, of another length, unreadable, or of other bytes than were written is a
  `LostFileError` that names it; no other error stands for a loss.
- What is read to open a run is checked when it is mapped, and rows are checked before they are read:
  `hashes`, and `check_keys`, `check_values` or `check_slice` before `keys` and `values`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import StorageError
from holdfast.state import bloom
from holdfast.state.blocks import Blocks, CheckedColumn, body_of, check_rows, check_slice
from holdfast.state.canonical import Bools, Ints, group_starts
from holdfast.state.schema import BUCKET, HASH, LIVE, StateSchema, single
from holdfast.storage import checksums
from holdfast.storage.atomic import refuse_exhaustion
from holdfast.storage.checksums import Identity, Table

_KEYS = b"holdfast.keys"
_LIVE = b"holdfast.live"
_BLOOM = b"holdfast.bloom"
_LOST = re.compile(r"lost file: (.+?\.(?:arrow|parquet))\b")


class RunJson(TypedDict):
    """A `RunInfo` in a manifest."""

    path: str
    rows: int
    bytes: int
    crc32: int
    slot_lo: int
    slot_hi: int
    buckets: list[list[int]]
    tombstones: int
    checksums_at: NotRequired[int]


@dataclass(frozen=True)
class RunInfo:
    """What a manifest says of a run."""

    path: str  # relative to the root, so that a work directory can be moved
    rows: int
    bytes: int
    crc32: int  # of the table of checksums, or where there is none of the whole file
    slot_lo: int
    slot_hi: int
    buckets: tuple[tuple[int, int], ...]  # (bucket, its first row), ascending
    tombstones: int
    checksums_at: int = (
        0  # where the table of checksums begins; 0 in a run of an older Holdfast, which has none
    )

    def to_json(self) -> RunJson:
        """Plain numbers, strings and lists."""
        return RunJson(
            path=self.path,
            rows=self.rows,
            bytes=self.bytes,
            crc32=self.crc32,
            slot_lo=self.slot_lo,
            slot_hi=self.slot_hi,
            buckets=[[bucket, first] for bucket, first in self.buckets],
            tombstones=self.tombstones,
            checksums_at=self.checksums_at,
        )

    @classmethod
    def from_json(cls, data: RunJson) -> RunInfo:
        """What `to_json` gave."""
        return cls(
            path=data["path"],
            rows=data["rows"],
            bytes=data["bytes"],
            crc32=data["crc32"],
            slot_lo=data["slot_lo"],
            slot_hi=data["slot_hi"],
            buckets=tuple((bucket, first) for bucket, first in data["buckets"]),
            tombstones=data["tombstones"],
            checksums_at=data.get("checksums_at", 0),
        )

    def overlaps(self, slots: tuple[int, int]) -> bool:
        """Whether the run may hold rows of these slots."""
        return self.slot_lo < slots[1] and slots[0] < self.slot_hi

    def within(self, slots: tuple[int, int]) -> bool:
        """Whether all rows of the run are of these slots."""
        return slots[0] <= self.slot_lo and self.slot_hi <= slots[1]


class LostFileError(StorageError):
    """A file that a manifest names is missing or torn; `path` says which, relative to the root."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"lost file: {path}",
            operation="open run",
            hint=f"It {reason}. Mark it lost: the stage runs its recorded plan again and repairs it.",
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[LostFileError], tuple[str, str], dict[str, object]]:
        return LostFileError, (self.path, self.reason), self.__dict__


def lost_path(text: str) -> str | None:
    """The path in an error's text: errors of Spark's Python workers arrive as text only."""
    match = _LOST.search(text)
    return match.group(1) if match else None


class Run:
    """An opened run: its columns lie in the memory map, nothing was copied but the Bloom filter."""

    def __init__(
        self,
        info: RunInfo,
        batch: pa.RecordBatch,
        metadata: dict[bytes, bytes],
        blocks: Blocks | None,
        file: Identity,
    ) -> None:
        values_at = 1 + int(batch.schema.metadata[_LIVE]) + int(batch.schema.metadata[_KEYS])
        keys_at = 1 + int(batch.schema.metadata[_LIVE])
        fields = list(batch.schema)
        self.info = info
        self.file = file
        self.blocks = blocks
        checked = [CheckedColumn(column, blocks) for column in batch.columns]
        check_slice(checked[1:keys_at], 0, batch.num_rows)  # tombstones are copied
        self._hashes, self._keys, self._values = checked[:1], checked[keys_at:values_at], checked[values_at:]
        self.schema = StateSchema(pa.schema(fields[keys_at:values_at]), pa.schema(fields[values_at:]))
        self.h: Ints = batch.column(0).to_numpy()
        self.live: Bools | None = batch.column(1).to_numpy(zero_copy_only=False) if keys_at == 2 else None
        self.keys: list[pa.Array] = batch.columns[keys_at:values_at]
        self.values: list[pa.Array] = batch.columns[values_at:]
        self.bloom: npt.NDArray[np.uint64] = np.frombuffer(metadata[_BLOOM], "<u8")
        self._buckets = np.array([bucket for bucket, _ in info.buckets], np.int64)
        self._bounds = np.array([*(first for _, first in info.buckets), info.rows], np.int64)

    def hashes(self, start: int, stop: int) -> Ints:
        """The hashes of rows from `start` to `stop`, checked."""
        check_slice(self._hashes, start, stop)
        return self.h[start:stop]

    def check_keys(self, rows: Ints) -> None:
        """Before these rows of `keys` are read."""
        check_rows(self._keys, rows)

    def check_values(self, rows: Ints) -> None:
        """Before these rows of `values` are read."""
        check_rows(self._values, rows)

    def check_first_key(self, start: int, stop: int) -> None:
        """Before rows from `start` to `stop` of the first of `keys` are searched."""
        check_slice(self._keys[:1], start, stop)

    def check_slice(self, start: int, stop: int) -> None:
        """Before rows from `start` to `stop` of `keys` and `values` are read."""
        check_slice([*self._keys, *self._values], start, stop)

    def slice(self, bucket: int) -> tuple[int, int]:
        """The rows of a bucket, `start` to `stop`; empty where the run has none."""
        return self.slices(bucket, bucket)

    def slices(self, first_bucket: int | None, last_bucket: int | None) -> tuple[int, int]:
        """The rows of a range of buckets, both ends included; None leaves an end open."""
        lo = 0 if first_bucket is None else int(np.searchsorted(self._buckets, first_bucket))
        hi = len(self._buckets)
        if last_bucket is not None:
            hi = int(np.searchsorted(self._buckets, last_bucket, side="right"))
        return int(self._bounds[lo]), int(self._bounds[max(lo, hi)])

    def buckets(self, start: int, stop: int) -> Ints:
        """The bucket of each row from `start` to `stop`."""
        bounds = np.clip(self._bounds, start, stop)
        return np.repeat(self._buckets, np.diff(bounds))


def write_run(
    root: Path, path: str, changes: pa.Table, schema: StateSchema, slot_lo: int, slot_hi: int
) -> RunInfo:
    """Write sorted changes of one slot range as a new file; the caller makes it durable."""
    bucket: Ints = single(changes.column(BUCKET)).to_numpy()
    h: Ints = single(changes.column(HASH)).to_numpy()
    tombstones = int(changes.num_rows - (single(changes.column(LIVE)).true_count))
    data = _serialise(changes, schema, h, tombstones > 0)
    table = _table(data) if checksums.are_on() else b""
    _write_new(root / path, path, memoryview(data), memoryview(table))
    return RunInfo(
        path=path,
        rows=changes.num_rows,
        bytes=data.size + len(table),
        crc32=zlib.crc32(table or data),
        slot_lo=slot_lo,
        slot_hi=slot_hi,
        buckets=tuple((int(bucket[start]), int(start)) for start in group_starts(bucket)),
        tombstones=tombstones,
        checksums_at=data.size if table else 0,
    )


def verify_run(root: Path, info: RunInfo) -> bool:
    """Whether the file is there with the length and the checksums that were written."""
    return checksums.fault(root, dict(info.to_json()), deep=True) is None


_open_runs: OrderedDict[str, Run] = OrderedDict()
_open_runs_lock = Lock()


def open_run(root: Path, info: RunInfo) -> Run:
    """Map a run, or take it from the process's cache of maps, the least recently used leaving first."""
    name = os.path.abspath(root / info.path)
    with _open_runs_lock:
        run = _open_runs.get(name)
        if run is not None and run.info == info and _is_as_mapped(name, run):
            _open_runs.move_to_end(name)
            return run
    # Mapped without the lock: two threads may both map a run, which costs little and harms nobody.
    run = _map(name, info)
    with _open_runs_lock:
        _open_runs[name] = run
        _open_runs.move_to_end(name)
        while len(_open_runs) > limits.OPEN_RUNS_MAX:
            _open_runs.popitem(last=False)
    return run


def confirm_open_runs() -> None:
    """Make sure that what was read is what was written, also of files that somebody wrote to while they were read."""
    with _open_runs_lock:
        written_to = [(name, run) for name, run in _open_runs.items() if not _is_as_mapped(name, run)]
        for name, _ in written_to:
            del _open_runs[name]
    for _, run in written_to:
        if run.blocks is not None:
            run.blocks.check_again()


def forget_open_runs() -> None:
    """Drop all cached maps; those in use stay mapped until their users let go."""
    with _open_runs_lock:
        _open_runs.clear()


def _is_as_mapped(name: str, run: Run) -> bool:
    """Whether nobody has written to the file; one that was unlinked is there for those who have mapped it."""
    try:
        return checksums.identity(name) == run.file
    except OSError:
        return True


def _map(name: str, info: RunInfo) -> Run:
    try:
        file = checksums.identity(name)
        # Closing the file gives its descriptor back at once; the buffers keep the map itself alive.
        with pa.memory_map(name) as source:
            if source.size() != info.bytes:
                raise LostFileError(info.path, f"has {source.size()} bytes instead of {info.bytes}")
            data = source.read_buffer()
            arrow = data.slice(0, info.checksums_at or info.bytes)
            blocks = _blocks(data, arrow, info) if info.checksums_at and checksums.are_on() else None
            batch, metadata = pa.ipc.open_file(arrow).get_batch_with_custom_metadata(0)
            if batch.num_rows != info.rows:
                raise LostFileError(info.path, f"has {batch.num_rows} rows instead of {info.rows}")
            return Run(info, batch, metadata, blocks, file)
    except FileNotFoundError as error:
        raise LostFileError(info.path, "is missing") from error
    except (OSError, pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
        refuse_exhaustion(error, "open run", info.path)
        raise LostFileError(info.path, f"cannot be read ({error})") from error


def _blocks(data: pa.Buffer, arrow: pa.Buffer, info: RunInfo) -> Blocks:
    table = bytes(memoryview(data)[info.checksums_at :])
    if zlib.crc32(table) != info.crc32:
        raise LostFileError(info.path, checksums.OTHER_TABLE)
    return Blocks(arrow, Table.from_bytes(table), partial(LostFileError, info.path))


def _table(data: pa.Buffer) -> bytes:
    batch = pa.ipc.open_file(data).get_batch(0)
    return Table.of(memoryview(data), body_of(batch, data.address)).to_bytes()


def _serialise(changes: pa.Table, schema: StateSchema, h: Ints, with_live: bool) -> pa.Buffer:
    names = [HASH, *([LIVE] if with_live else []), *schema.keys.names, *schema.values.names]
    counts = {_KEYS: str(len(schema.keys)), _LIVE: str(int(with_live))}
    file_schema = pa.schema([schema.changes.field(name) for name in names], metadata=counts)
    batch = pa.record_batch([single(changes.column(name)) for name in names], schema=file_schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, file_schema) as writer:
        writer.write_batch(batch, custom_metadata={_BLOOM: bloom.build(h)})
    return sink.getvalue()


def _write_new(target: Path, path: str, *parts: memoryview) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb", buffering=0) as file:
            for part in parts:
                _write_all(file.fileno(), part, target)
    except FileExistsError as error:
        raise StorageError(
            f"{path} exists already and is not overwritten",
            operation="write run",
            hint="Names must be unique to the attempt; two attempts seem to share one.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}",
            operation="write run",
            hint="Check the free space and the permissions of the work directory, then run again.",
        ) from error


def _write_all(descriptor: int, data: memoryview, target: Path) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        # Nobody knows of this file yet: giving its space back is safe, and helps where the disk is full.
        target.unlink(missing_ok=True)
        raise
