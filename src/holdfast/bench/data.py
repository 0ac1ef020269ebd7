"""Seeded Parquet inputs, the same bytes for every side and every run with the same parameters.

A data set is a directory of files in the order of their names, which is also the order of their
modification times: Spark's file stream goes by the latter. The first files hold every key once, so that
all sides measure on a full state; then come files of uniformly drawn keys.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core.errors import StorageError

SCHEMA = "k long, v double"

# Modification times of the files: an arbitrary start, then a second apart.
FIRST_MTIME_S = 1_000_000_000


@dataclass(frozen=True)
class DataSet:
    """Files to feed one by one, and how many of the first ones only fill state and warm caches."""

    files: tuple[Path, ...]
    uncounted: int
    rows: int
    schema: str = SCHEMA

    @property
    def directory(self) -> Path:
        return self.files[0].parent


def default_directory() -> Path:
    """A directory of this user's among temporary ones.

    Everybody knows its name, so one that is another's, or that others may write to, is refused.
    """
    path = Path(tempfile.gettempdir()) / "holdfast-bench"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StorageError(
            f"{path} may hold what others have put there",
            operation="bench",
            hint="Remove it, or name another place in TMPDIR.",
        )
    return path


def data_set(directory: Path, *, keys: int, rows: int, warmup: int, epochs: int, seed: int) -> DataSet:
    """The data set with these parameters, made if it is not there yet."""
    home = directory / f"keys={keys},rows={rows},warmup={warmup},epochs={epochs},seed={seed}"
    tables = _filling_then_drawn(keys, rows, warmup + epochs, np.random.default_rng([seed, keys, rows]))
    return DataSet(made_once(home, tables), -(-keys // rows) + warmup, rows)


def filling_files(directory: Path, *, keys: int, rows: int, seed: int) -> int:
    """Files that together hold every key once, in random order; returns how many they are."""
    batches = _every_key(keys, rows, np.random.default_rng([seed, keys]))
    for number, batch in enumerate(batches):
        rng = np.random.default_rng([seed, keys, number])
        write_numbered(directory, number, _keyed(batch, rng))
    return len(batches)


def touching_file(directory: Path, number: int, *, keys: int, touched: int, seed: int) -> None:
    """The file with this number: `touched` distinct keys; what is drawn depends on all arguments."""
    rng = np.random.default_rng([seed, keys, touched, number])
    drawn = rng.choice(keys, size=touched, replace=False, shuffle=False)
    write_numbered(directory, number, _keyed(drawn.astype(np.int64), rng))


@contextmanager
def scratch(files: Sequence[Path]) -> Iterator[Path]:
    """A fresh directory on the same file system as the data, for what a side writes."""
    with tempfile.TemporaryDirectory(prefix="side-", dir=files[0].parents[1]) as name:
        yield Path(name)


def made_once(home: Path, tables: Iterable[pa.Table]) -> tuple[Path, ...]:
    """The files of a directory, a table each; those that are there already are taken as they are.

    They are written aside and renamed into place, so that half a data set is never used.
    """
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="making-", dir=home.parent))
        for number, table in enumerate(tables):
            write_numbered(aside, number, table)
        try:
            aside.rename(home)
        except OSError:
            if not home.exists():
                raise
            shutil.rmtree(aside)
    return tuple(sorted(home.glob("*.parquet")))


def _filling_then_drawn(keys: int, rows: int, drawn: int, rng: np.random.Generator) -> Iterator[pa.Table]:
    for batch in _every_key(keys, rows, rng):
        yield _keyed(batch, rng)
    for _ in range(drawn):
        yield _keyed(rng.integers(keys, size=rows), rng)


def _every_key(keys: int, rows: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    every_key = rng.permutation(keys).astype(np.int64)
    return [every_key[start : start + rows] for start in range(0, keys, rows)]


def _keyed(keys: npt.NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    return pa.table({"k": keys, "v": rng.random(len(keys))})


def numbered(directory: Path, number: int) -> Path:
    """Where the file with a number is: the order of the names is that of the numbers."""
    return directory / f"{number:05d}.parquet"


def write_numbered(directory: Path, number: int, table: pa.Table) -> None:
    """Files are read in the order of their modification, so their times follow their numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    path = numbered(directory, number)
    pq.write_table(table, path)
    os.utime(path, (FIRST_MTIME_S + number, FIRST_MTIME_S + number))
