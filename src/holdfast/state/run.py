"""A run: one immutable Arrow file of state rows, sorted by bucket, hash and key.

Bytes: an Arrow IPC file (uncompressed, so that it can be mapped) of one record batch. Its columns are
`_h`, then `_live` only where the run holds tombstones, the keys, the values. The bucket is not a column:
rows of a bucket stand together, and `RunInfo.buckets` says where each begins. The schema's metadata
counts the key columns (`holdfast.keys`) and says whether `_live` is there (`holdfast.live`); the batch's
custom metadata holds the Bloom filter of the hashes (`holdfast.bloom`).

Invariants:
- A run is written once, under a name that did not exist, and never changes. So the cache of memory maps
  needs no invalidation, and any process may map any run.
- A run that is missing, of another length, or unreadable is a `LostFileError` that names it; no other
  error stands for a loss. Flipped bytes inside are found by `verify_run`, not by opening.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.core import limits
from holdfast.core.errors import StorageError
from holdfast.state import bloom
from holdfast.state.canonical import Bools, Ints, group_starts
from holdfast.state.schema import BUCKET, HASH, LIVE, StateSchema, single

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


@dataclass(frozen=True)
class RunInfo:
    """What a manifest says of a run."""

    path: str  # relative to the root, so that a work directory can be moved
    rows: int
    bytes: int
    crc32: int
    slot_lo: int
    slot_hi: int
    buckets: tuple[tuple[int, int], ...]  # (bucket, its first row), ascending
    tombstones: int

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

    def __init__(self, info: RunInfo, batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> None:
        values_at = 1 + int(batch.schema.metadata[_LIVE]) + int(batch.schema.metadata[_KEYS])
        keys_at = 1 + int(batch.schema.metadata[_LIVE])
        fields = list(batch.schema)
        self.info = info
        self.schema = StateSchema(pa.schema(fields[keys_at:values_at]), pa.schema(fields[values_at:]))
        self.h: Ints = batch.column(0).to_numpy()
        self.live: Bools | None = batch.column(1).to_numpy(zero_copy_only=False) if keys_at == 2 else None
        self.keys: list[pa.Array] = batch.columns[keys_at:values_at]
        self.values: list[pa.Array] = batch.columns[values_at:]
        self.bloom: npt.NDArray[np.uint64] = np.frombuffer(metadata[_BLOOM], "<u8")
        self._buckets = np.array([bucket for bucket, _ in info.buckets], np.int64)
        self._bounds = np.array([*(first for _, first in info.buckets), info.rows], np.int64)

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
    _write_new(root / path, path, data)
    return RunInfo(
        path=path,
        rows=changes.num_rows,
        bytes=data.size,
        crc32=zlib.crc32(data),
        slot_lo=slot_lo,
        slot_hi=slot_hi,
        buckets=tuple((int(bucket[start]), int(start)) for start in group_starts(bucket)),
        tombstones=tombstones,
    )


def verify_run(root: Path, info: RunInfo) -> bool:
    """Whether the file is there with the length and the checksum that the manifest says."""
    try:
        with pa.memory_map(str(root / info.path)) as source:
            return bool(source.size() == info.bytes and zlib.crc32(source.read_buffer()) == info.crc32)
    except OSError:
        return False


_open_runs: OrderedDict[str, Run] = OrderedDict()
_open_runs_lock = Lock()


def open_run(root: Path, info: RunInfo) -> Run:
    """Map a run, or take it from the process's cache of maps, the least recently used leaving first."""
    name = os.path.abspath(root / info.path)
    with _open_runs_lock:
        run = _open_runs.get(name)
        if run is not None and run.info == info:
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


def forget_open_runs() -> None:
    """Drop all cached maps; those in use stay mapped until their users let go."""
    with _open_runs_lock:
        _open_runs.clear()


def _map(name: str, info: RunInfo) -> Run:
    try:
        # Closing the file gives its descriptor back at once; the buffers keep the map itself alive.
        with pa.memory_map(name) as source:
            if source.size() != info.bytes:
                raise LostFileError(info.path, f"has {source.size()} bytes instead of {info.bytes}")
            batch, metadata = pa.ipc.open_file(source).get_batch_with_custom_metadata(0)
            if batch.num_rows != info.rows:
                raise LostFileError(info.path, f"has {batch.num_rows} rows instead of {info.rows}")
            return Run(info, batch, metadata)
    except FileNotFoundError as error:
        raise LostFileError(info.path, "is missing") from error
    except (OSError, pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
        raise LostFileError(info.path, f"cannot be read ({error})") from error


def _serialise(changes: pa.Table, schema: StateSchema, h: Ints, with_live: bool) -> pa.Buffer:
    names = [HASH, *([LIVE] if with_live else []), *schema.keys.names, *schema.values.names]
    counts = {_KEYS: str(len(schema.keys)), _LIVE: str(int(with_live))}
    file_schema = pa.schema([schema.changes.field(name) for name in names], metadata=counts)
    batch = pa.record_batch([single(changes.column(name)) for name in names], schema=file_schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, file_schema) as writer:
        writer.write_batch(batch, custom_metadata={_BLOOM: bloom.build(h)})
    return sink.getvalue()


def _write_new(target: Path, path: str, data: pa.Buffer) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(data), target)
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
