"""A process that may open no more files has lost none: whoever reads says what is short, and nothing is replayed."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import StorageError
from holdfast.core.json import Json
from holdfast.spark.converting import _Reading
from holdfast.spark.direct import DirectFile, _row_groups
from holdfast.state.run import LostFileError, RunInfo, forget_open_runs, open_run
from holdfast.storage.checksums import fault
from unit.state.helpers import COUNTS, counts


@contextmanager
def without_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def a_run(work: Path) -> RunInfo:
    from holdfast.state.run import write_run

    changes = counts({1: 10, 2: 20}).sort_by([("_bucket", "ascending"), ("_h", "ascending")])
    forget_open_runs()
    return write_run(work, "run.arrow", changes, COUNTS, 0, 4096)


def a_file(work: Path) -> Path:
    work.mkdir(exist_ok=True)
    pq.write_table(pa.table({"k": pa.array([1], pa.int64())}), work / "file.parquet")
    return work / "file.parquet"


def of_a_run(work: Path) -> Callable[[], object]:
    info = a_run(work)
    return lambda: open_run(work, info)


def of_a_segment(work: Path) -> Callable[[], object]:
    file: Json = {"path": "file.parquet", "bytes": a_file(work).stat().st_size, "crc32": 0}
    return lambda: fault(work, file, deep=True)


def of_a_task(work: Path) -> Callable[[], object]:
    file = DirectFile(str(a_file(work)), 0, 0, "file.parquet")
    return lambda: list(_row_groups(file, ["k"]))


def of_a_conversion(work: Path) -> Callable[[], object]:
    read = _Reading((str(a_file(work)),), pa.schema([("k", pa.int64())]))
    return lambda: list(read._rows(read.paths[0]))


@pytest.mark.parametrize("reader", [of_a_run, of_a_segment, of_a_task, of_a_conversion])
def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_lost(
    work: Path, reader: Callable[[Path], Callable[[], object]]
) -> None:
    read = reader(work)
    with without_descriptors(), pytest.raises(StorageError, match="Too many open files") as told:
        read()
    assert not isinstance(told.value, LostFileError)
    assert told.value.heals
    assert "ulimit -n" in str(told.value.hint)
