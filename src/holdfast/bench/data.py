"""Seeded Parquet inputs, the same bytes for every side and every run with the same parameters.

A data set is a directory of files in the order of their names, which is also the order of their
modification times: Spark's file stream goes by the latter. The first files hold every key once, so that
all sides measure on a full state; then come files of uniformly drawn keys.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "k long, v double"

# Modification times of the files: an arbitrary start, then a second apart.
FIRST_MTIME_S = 1_000_000_000


@dataclass(frozen=True)
class DataSet:
    """Files to feed one by one, and how many of the first ones only fill state and warm caches."""

    files: tuple[Path, ...]
    uncounted: int
    rows: int


def default_directory() -> Path:
    return Path(tempfile.gettempdir()) / "holdfast-bench"


def data_set(directory: Path, *, keys: int, rows: int, warmup: int, epochs: int, seed: int) -> DataSet:
    """The data set with these parameters, made if it is not there yet."""
    home = directory / f"keys={keys},rows={rows},warmup={warmup},epochs={epochs},seed={seed}"
    filling = -(-keys // rows)
    if not home.exists():
        _make(home, keys=keys, rows=rows, drawn=warmup + epochs, seed=seed)
    return DataSet(tuple(sorted(home.glob("*.parquet"))), filling + warmup, rows)


def filling_files(directory: Path, *, keys: int, rows: int, seed: int) -> int:
    """Files that together hold every key once, in random order; returns how many they are."""
    every_key = np.random.default_rng([seed, keys]).permutation(keys).astype(np.int64)
    batches = [every_key[start : start + rows] for start in range(0, keys, rows)]
    for number, batch in enumerate(batches):
        _write_numbered(directory, number, batch, np.random.default_rng([seed, keys, number]))
    return len(batches)


def touching_file(directory: Path, number: int, *, keys: int, touched: int, seed: int) -> None:
    """The file with this number: `touched` distinct keys; what is drawn depends on all arguments."""
    rng = np.random.default_rng([seed, keys, touched, number])
    drawn = rng.choice(keys, size=touched, replace=False, shuffle=False)
    _write_numbered(directory, number, drawn.astype(np.int64), rng)


@contextmanager
def scratch(files: Sequence[Path]) -> Iterator[Path]:
    """A fresh directory on the same file system as the data, for what a side writes."""
    with tempfile.TemporaryDirectory(prefix="side-", dir=files[0].parents[1]) as name:
        yield Path(name)


def _make(home: Path, *, keys: int, rows: int, drawn: int, seed: int) -> None:
    """Write a data set aside and rename it into place, so that half a one is never used."""
    home.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, keys, rows])
    aside = Path(tempfile.mkdtemp(prefix="making-", dir=home.parent))
    every_key = rng.permutation(keys).astype(np.int64)
    batches = [every_key[start : start + rows] for start in range(0, keys, rows)]
    for number in range(len(batches) + drawn):
        batch = batches[number] if number < len(batches) else rng.integers(keys, size=rows)
        _write_numbered(aside, number, batch, rng)
    try:
        aside.rename(home)
    except OSError:
        if not home.exists():
            raise
        shutil.rmtree(aside)


def _write_numbered(
    directory: Path, number: int, keys: npt.NDArray[np.int64], rng: np.random.Generator
) -> None:
    """Files are read in the order of their modification, so their times follow their numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:05d}.parquet"
    pq.write_table(pa.table({"k": keys, "v": rng.random(len(keys))}), path)
    os.utime(path, (FIRST_MTIME_S + number, FIRST_MTIME_S + number))
