"""Segments: the rows of one task of one epoch on one port, as an immutable Parquet file."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core.errors import StorageError
from holdfast.core.json import Json


class SegmentWriter:
    """Writes a segment batch by batch; without rows there is no file."""

    def __init__(self, root: Path, path: str, schema: pa.Schema) -> None:
        self._root, self._path, self._schema = root, path, schema
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows."""
        if rows.num_rows == 0:
            return
        try:
            self._writer = self._writer or _open(self._root / self._path, self._schema)
            self._writer.write(rows)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        self._rows += rows.num_rows

    def close(self) -> list[Json]:
        """Finish the file and describe it for the manifest."""
        if self._writer is None:
            return []
        try:
            self._writer.close()
            with pa.memory_map(str(self._root / self._path)) as mapped:
                buffer = mapped.read_buffer()
                size, crc32 = buffer.size, zlib.crc32(buffer)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        return [{"path": self._path, "rows": self._rows, "bytes": size, "crc32": crc32}]


def _open(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Statistics and dictionaries are for readers who filter; consumers of a channel read it whole, once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=False, write_statistics=False)


def _disk_error(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}",
        operation="write segment",
        hint="Nothing was committed. Make room or mend the permissions of the work directory, and run again.",
    )
