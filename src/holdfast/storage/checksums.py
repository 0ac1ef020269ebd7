"""Checksums of the files that manifests name: whether their bytes are those that were written.

A segment is read whole, so one CRC-32 covers it. A lookup reads a few rows of a run, so a run ends with a table of
checksums, one for each block of it, and what the manifest holds is the CRC-32 of that table. CRC-32 finds every flipped
bit, and any burst of up to 32 bits, in a block.

Invariants:
- What was found right is taken to be right for as long as nobody writes to the file: its inode, length, and times of
  modification and change tell. Bits that change beneath the file system, in pages that are read from the disk again,
  change no times; they are found by the next process that reads them, and by `holdfast scrub`.
- A file of an older Holdfast, a run without a table, is checked whole or not at all.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from holdfast.core import limits
from holdfast.core.json import Json

_HEADER = struct.Struct("<QQQ")
OTHER_TABLE = "has another checksum in its table of checksums"

_NOT_THE_FILES_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

# Inode, length, modification and change: what a write changes.
Identity = tuple[int, int, int, int]


@dataclass(frozen=True)
class Table:
    """The checksums of a file's blocks, and which of its bytes are the body: all others are read to open it."""

    block_bytes: int
    body: tuple[int, int]  # its first byte, and the one after its last
    crcs: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, data: memoryview, body: tuple[int, int]) -> Table:
        """The table of a file's bytes."""
        size = limits.CHECKSUM_BLOCK_BYTES
        crcs = [zlib.crc32(data[start : start + size]) for start in range(0, len(data), size)]
        return cls(size, body, np.array(crcs, "<u4"))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Table:
        """What `to_bytes` gave."""
        size, start, stop = _HEADER.unpack_from(data)
        return cls(size, (start, stop), np.frombuffer(data, "<u4", offset=_HEADER.size))

    def to_bytes(self) -> bytes:
        """As it stands at the end of a file."""
        return _HEADER.pack(self.block_bytes, *self.body) + self.crcs.tobytes()

    def wrong(self, data: memoryview, blocks: Iterable[int]) -> int | None:
        """The first of these blocks whose bytes are not those that were written."""
        size = self.block_bytes
        for block in blocks:
            if zlib.crc32(data[block * size : (block + 1) * size]) != self.crcs[block]:
                return block
        return None


def identity(path: str | Path) -> Identity:
    """What changes when a file is written to, or replaced."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def fault(root: Path, file: Json, *, deep: bool) -> str | None:
    """What is wrong with a file that a manifest names, None if nothing; its bytes are read only if `deep`."""
    path = root / file["path"]
    try:
        size = path.stat().st_size
        if size != file["bytes"]:
            return f"has {size} bytes instead of {file['bytes']}"
        return _mapped_fault(path, file) if deep and size else None
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        if error.errno in _NOT_THE_FILES_FAULT:
            raise
        return f"cannot be read ({error.strerror or error})"


_checked: OrderedDict[str, Identity] = OrderedDict()
_checked_lock = Lock()


def fault_at_first(root: Path, file: Json) -> str | None:
    """What is wrong with a file; its bytes are read when this process first asks, or after somebody wrote to it."""
    if not _on:
        return fault(root, file, deep=False)
    name = str(root / file["path"])
    try:
        now = identity(name)
    except FileNotFoundError:
        return "is missing"
    with _checked_lock:
        if _checked.get(name) == now and now[1] == file["bytes"]:
            return None
    wrong = fault(root, file, deep=True)
    if wrong is None:
        with _checked_lock:
            _checked[name] = now
            while len(_checked) > limits.CHECKED_FILES_MAX:
                _checked.popitem(last=False)
    return wrong


def _mapped_fault(path: Path, file: Json) -> str | None:
    with path.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped:
        at = file.get("checksums_at")
        with memoryview(mapped) as data:
            return _fault_in_blocks(data, at, file) if at else _fault_in(data, file)


def _fault_in(data: memoryview, file: Json) -> str | None:
    return None if zlib.crc32(data) == file["crc32"] else "has another checksum"


def _fault_in_blocks(data: memoryview, at: int, file: Json) -> str | None:
    if zlib.crc32(data[at:]) != file["crc32"]:
        return OTHER_TABLE
    table = Table.from_bytes(bytes(data[at:]))
    with data[:at] as checked:
        block = table.wrong(checked, range(len(table.crcs)))
    return None if block is None else wrong_block(table.block_bytes, block)


def wrong_block(block_bytes: int, block: int) -> str:
    """How a damaged block is told of."""
    return f"has another checksum from byte {block * block_bytes} on"


_on = True


def are_on() -> bool:
    """Whether runs get tables, and files are checked when they are read."""
    return _on


def switch(on: bool) -> None:
    """Only benchmarks turn checksums off, to measure what they cost."""
    global _on
    _on = on


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """With checksums or without, for a while."""
    before = _on
    switch(on)
    try:
        yield
    finally:
        switch(before)
