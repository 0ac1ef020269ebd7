"""Benchmark inputs: reproducible, complete, in an order that a file stream keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from holdfast.bench.data import DataSet, data_set, filling_files, scratch, touching_file


def small(directory: Path, seed: int = 3) -> DataSet:
    return data_set(directory, keys=250, rows=100, warmup=1, epochs=2, seed=seed)


def test_the_uncounted_files_hold_every_key_once_and_the_warm_up(tmp_path: Path) -> None:
    made = small(tmp_path)
    assert made.uncounted == 3 + 1
    assert len(made.files) == 3 + 1 + 2
    filled = np.concatenate([pq.read_table(file)["k"].to_numpy() for file in made.files[:3]])
    assert sorted(filled) == list(range(250))
    assert all(pq.read_metadata(file).num_rows == 100 for file in made.files[3:])


def test_one_seed_gives_one_data_set(tmp_path: Path) -> None:
    first, again, other = small(tmp_path / "a"), small(tmp_path / "b"), small(tmp_path / "c", seed=4)
    assert [f.read_bytes() for f in first.files] == [f.read_bytes() for f in again.files]
    assert [f.read_bytes() for f in first.files] != [f.read_bytes() for f in other.files]


def test_a_data_set_is_made_once(tmp_path: Path) -> None:
    before = [file.stat().st_ino for file in small(tmp_path).files]
    assert [file.stat().st_ino for file in small(tmp_path).files] == before


def test_file_times_rise_with_file_names(tmp_path: Path) -> None:
    times = [file.stat().st_mtime for file in small(tmp_path).files]
    assert times == sorted(set(times))


def test_touching_files_hold_distinct_keys_within_the_state(tmp_path: Path) -> None:
    touching_file(tmp_path, 0, keys=1000, touched=100, seed=1)
    keys = pq.read_table(tmp_path / "00000.parquet")["k"].to_numpy()
    assert len(np.unique(keys)) == 100
    assert keys.min() >= 0
    assert keys.max() < 1000


def test_touching_files_differ_by_number(tmp_path: Path) -> None:
    for number in (0, 1):
        touching_file(tmp_path, number, keys=1000, touched=100, seed=1)
    one, two = (pq.read_table(tmp_path / f"0000{number}.parquet") for number in (0, 1))
    assert one != two


def test_filling_files_hold_every_key_once(tmp_path: Path) -> None:
    assert filling_files(tmp_path, keys=1000, rows=300, seed=1) == 4
    assert sorted(pq.read_table(tmp_path)["k"].to_pylist()) == list(range(1000))


def test_scratch_is_beside_the_data_and_gone_afterwards(tmp_path: Path) -> None:
    files = small(tmp_path).files
    with scratch(files) as place:
        assert place.parent == files[0].parent.parent
    assert not place.exists()
