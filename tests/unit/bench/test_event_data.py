"""Inputs with event times: reproducible, with as many repeats as said, and never late."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from holdfast.bench.data import DataSet
from holdfast.bench.event_data import FIRST_EVENT_US, id_set, key_set

SPAN_US = 60_000_000


def ids(directory: Path, repeated: float = 0.1, seed: int = 3) -> DataSet:
    return id_set(directory, rows=200, repeated=repeated, span_s=60, warmup=1, epochs=3, seed=seed)


def keys(directory: Path, seed: int = 3) -> DataSet:
    return key_set(directory, keys=50, rows=200, span_s=60, warmup=1, epochs=3, seed=seed)


def tables(made: DataSet) -> list[pa.Table]:
    return [pq.read_table(file) for file in made.files]


def test_a_tenth_of_the_rows_repeat_an_id(tmp_path: Path) -> None:
    made = ids(tmp_path)
    assert made.uncounted == 1
    found = tables(made)
    assert [table.num_rows for table in found] == [200] * 4
    for files in range(1, 5):
        so_far = pa.concat_tables(found[:files])
        assert pc.count_distinct(so_far["id"]).as_py() == files * 180


def test_without_repeats_all_ids_are_distinct(tmp_path: Path) -> None:
    every = pa.concat_tables(tables(ids(tmp_path, repeated=0.0)))
    assert pc.count_distinct(every["id"]).as_py() == every.num_rows == 800


def test_ids_are_twenty_characters_and_out_of_order(tmp_path: Path) -> None:
    found = tables(ids(tmp_path))[0]["id"]
    assert pc.unique(pc.utf8_length(found)).to_pylist() == [20]
    assert found.to_pylist() != sorted(found.to_pylist())


@pytest.mark.parametrize("make", [ids, keys])
def test_event_time_advances_a_span_a_file_and_is_in_no_order_within(make, tmp_path: Path) -> None:
    for number, table in enumerate(tables(make(tmp_path))):
        times = table["ts"].cast(pa.int64()).to_numpy() - FIRST_EVENT_US
        assert np.all(times // SPAN_US == number)
        assert np.any(np.diff(times) < 0)


@pytest.mark.parametrize("make", [ids, keys])
def test_one_seed_gives_one_data_set_with_times(make, tmp_path: Path) -> None:
    first, again, other = make(tmp_path / "a"), make(tmp_path / "b"), make(tmp_path / "c", seed=4)
    assert tables(first) == tables(again)
    assert all(one != two for one, two in zip(tables(first), tables(other), strict=True))
    assert all(one != two for one, two in pairwise(tables(first)))


def test_keys_are_drawn_from_all(tmp_path: Path) -> None:
    drawn = pa.concat_tables(tables(keys(tmp_path)))["k"]
    assert set(drawn.to_pylist()) == set(range(50))
