from __future__ import annotations

import errno
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core import limits
from holdfast.core.errors import StorageError
from holdfast.state import run as runs
from holdfast.state.run import (
    LostFileError,
    RunInfo,
    forget_open_runs,
    lost_path,
    open_run,
    verify_run,
    write_run,
)
from unit.state.helpers import COUNTS, counts


@pytest.fixture(autouse=True)
def fresh_cache():
    forget_open_runs()


def sorted_counts(numbers, **options):
    return counts(numbers, **options).sort_by([("_bucket", "ascending"), ("_h", "ascending")])


@pytest.fixture
def info(work):
    return write_run(work, "s/1.arrow", sorted_counts({k: k * 10 for k in range(100)}), COUNTS, 0, 4096)


def test_a_run_reads_back_as_written(work, info):
    run = open_run(work, info)
    table = sorted_counts({k: k * 10 for k in range(100)})
    assert (run.h == table["_h"].to_numpy()).all()
    assert run.keys[0].equals(table["k"].combine_chunks())
    assert run.values[0].equals(table["n"].combine_chunks())
    assert run.live is None
    assert run.slice(0) == (0, 100)
    assert run.slice(1)[0] == run.slice(1)[1]
    assert (info.rows, info.tombstones, info.buckets) == (100, 0, ((0, 0),))
    assert info.bytes == os.path.getsize(work / info.path)


def test_buckets_are_slices_and_tombstones_are_marked(work):
    parts = [sorted_counts({1: 1, 2: 2}, bucket=-3), sorted_counts({1: None}, bucket=5, live=False)]
    info = write_run(work, "r.arrow", pa.concat_tables(parts), COUNTS, 0, 4096)
    assert info.buckets == ((-3, 0), (5, 2))
    assert info.tombstones == 1
    run = open_run(work, info)
    assert [run.slice(b) for b in (-3, 5)] == [(0, 2), (2, 3)]
    assert run.slices(None, 4) == (0, 2)
    assert run.slices(-2, None) == (2, 3)
    assert run.live.tolist() == [True, True, False]
    assert run.buckets(1, 3).tolist() == [-3, 5]


def test_what_a_manifest_says_of_a_run_survives_json(info):
    assert RunInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_a_file_is_never_overwritten(work, info):
    before = (work / info.path).read_bytes()
    with pytest.raises(StorageError, match="not overwritten"):
        write_run(work, info.path, sorted_counts({7: 7}), COUNTS, 0, 4096)
    assert (work / info.path).read_bytes() == before


def test_a_full_disk_is_a_storage_error_and_leaves_nothing_behind(work, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs.os, "write", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        write_run(work, "r.arrow", sorted_counts({1: 1}), COUNTS, 0, 4096)
    assert "free space" in caught.value.hint
    assert not (work / "r.arrow").exists()


def missing(file):
    file.unlink()


def truncated(file):
    os.truncate(file, os.path.getsize(file) - 1)


def grown(file):
    os.truncate(file, os.path.getsize(file) + 8)


def empty(file):
    os.truncate(file, 0)


def zeros(file):
    file.write_bytes(bytes(os.path.getsize(file)))


def no_footer(file):
    file.write_bytes(file.read_bytes()[:-16] + bytes(16))


@pytest.mark.parametrize("damage", [missing, truncated, grown, empty, zeros, no_footer])
def test_a_lost_file_is_named(work, info, damage):
    damage(work / info.path)
    assert not verify_run(work, info)
    with pytest.raises(LostFileError) as caught:
        open_run(work, info)
    assert caught.value.path == "s/1.arrow"
    assert lost_path(f"PythonException: ... {caught.value} at org.apache.spark") == "s/1.arrow"


def test_a_lost_file_error_survives_pickling():
    error = LostFileError("a b/1-0.arrow", "is missing").at(stage="totals", epoch=4)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.path, copy.reason, copy.stage, copy.epoch) == ("a b/1-0.arrow", "is missing", "totals", 4)
    assert str(copy) == str(error)
    assert lost_path(str(error)) == "a b/1-0.arrow"
    assert lost_path("another error") is None


def test_a_flipped_byte_is_found_by_verifying(work, info):
    assert verify_run(work, info)
    data = bytearray((work / info.path).read_bytes())
    data[len(data) // 2] ^= 1
    (work / info.path).write_bytes(bytes(data))
    assert not verify_run(work, info)


def test_a_run_is_mapped_once_and_the_oldest_map_goes_first(work, monkeypatch):
    monkeypatch.setattr(limits, "OPEN_RUNS_MAX", 2)
    infos = [write_run(work, f"{i}.arrow", sorted_counts({i: i}), COUNTS, 0, 4096) for i in range(3)]
    first = open_run(work, infos[0])
    open_run(work, infos[1])
    assert open_run(work, infos[0]) is first
    open_run(work, infos[2])
    assert open_run(work, infos[0]) is first
    assert len(runs._open_runs) == 2


def test_a_cached_map_does_not_stand_for_another_file_of_the_same_name(work, info):
    open_run(work, info)
    (work / info.path).unlink()
    other = write_run(work, info.path, sorted_counts({7: 7}), COUNTS, 0, 4096)
    assert open_run(work, other).values[0].to_pylist() == [7]
    with pytest.raises(LostFileError):
        open_run(work, info)


def test_a_map_holds_no_descriptor_and_outlives_its_file(work, info):
    before = len(os.listdir("/proc/self/fd"))
    run = open_run(work, info)
    assert len(os.listdir("/proc/self/fd")) == before
    (work / info.path).unlink()
    forget_open_runs()
    assert run.values[0].to_pylist() == [k * 10 for k in run.keys[0].to_pylist()]


def test_columns_are_not_copied_on_opening(work):
    info = write_run(work, "r.arrow", sorted_counts({k: k for k in range(100_000)}), COUNTS, 0, 4096)
    before = pa.total_allocated_bytes()
    run = open_run(work, info)
    assert pa.total_allocated_bytes() - before < 100_000
    assert isinstance(run.h, np.ndarray)
    assert not run.h.flags.writeable
