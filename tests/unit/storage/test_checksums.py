"""A segment is checked when a process first reads it, and again after somebody wrote to it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from holdfast.channels.segments import SegmentWriter
from holdfast.core.errors import StorageError
from holdfast.core.json import Json
from holdfast.runtime.data_source import ChannelReader, SegmentPart, Wanted
from holdfast.storage import checksums
from holdfast.storage.checksums import fault, fault_at_first
from unit.state.test_bit_flips import flip


@pytest.fixture
def segment(tmp_path: Path) -> Json:
    writer = SegmentWriter(tmp_path, "out.parquet", pa.schema([("k", pa.int64()), ("s", pa.string())]))
    writer.write(pa.table({"k": list(range(500)), "s": [f"row {n}" for n in range(500)]}))
    (file,) = writer.close()
    return file


def test_bytes_are_read_once_and_again_after_a_write(
    tmp_path: Path, segment: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def noted(root: Path, file: Json, *, deep: bool) -> str | None:
        looks.append(file["path"])
        return fault(root, file, deep=deep)

    monkeypatch.setattr(checksums, "fault", noted)
    assert [fault_at_first(tmp_path, segment) for _ in range(3)] == [None] * 3
    assert len(looks) == 1
    flip(tmp_path / "out.parquet", 4321)
    assert fault_at_first(tmp_path, segment) == "has another checksum"
    assert fault_at_first(tmp_path, segment) == "has another checksum"
    flip(tmp_path / "out.parquet", 4321)
    assert fault_at_first(tmp_path, segment) is None
    (tmp_path / "out.parquet").unlink()
    assert fault_at_first(tmp_path, segment) == "is missing"


def test_a_reader_from_outside_gets_right_rows_or_an_error(tmp_path: Path, segment: Json) -> None:
    wanted = Wanted(tmp_path, "s", None, "out", None, "earliest", None, None)
    reader = ChannelReader(wanted, t.StructType().add("k", t.LongType()).add("s", t.StringType()))
    part = SegmentPart(segment["path"], 0, segment["bytes"], segment["crc32"])
    right = pa.Table.from_batches(reader.read(part))
    assert right.num_rows == 500
    drawn = random.Random(3)
    for _ in range(50):
        bit = drawn.randrange(segment["bytes"] * 8)
        flip(tmp_path / "out.parquet", bit)
        with pytest.raises(StorageError, match="has another checksum") as caught:
            list(reader.read(part))
        assert "holdfast scrub --repair" in (caught.value.hint or "")
        flip(tmp_path / "out.parquet", bit)
    assert pa.Table.from_batches(reader.read(part)).equals(right)
