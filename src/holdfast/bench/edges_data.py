"""Epochs for the benchmark of sinks: directories of two segments each, as two tasks leave them.

Rows have what tables have: a number to find them by, text, money, a time, a value that may be missing and a note that
mostly is. The numbers of an epoch are all different, and half of them were there before.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.bench.data import DataSet

SCHEMA = "id long, name string, amount decimal(12,2), ts timestamp, score double, note string"
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("ts", pa.timestamp("us", "UTC")),
        ("score", pa.float64()),
        ("note", pa.string()),
    ]
)
SEGMENTS = 2

_NAMES = 50_000
_START_US = 1_750_000_000_000_000


@dataclass(frozen=True)
class EpochSet(DataSet):
    """Its files are directories, an epoch each."""


def epoch_set(directory: Path, *, rows: int, warmup: int, epochs: int, seed: int) -> EpochSet:
    """The epochs with these parameters, made if they are not there yet."""
    home = directory / f"epochs-rows={rows},warmup={warmup},epochs={epochs},seed={seed}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="making-", dir=home.parent))
        for number in range(warmup + epochs):
            _write(aside / f"{number:05d}", _rows(rows, np.random.default_rng([seed, rows, number])))
        aside.rename(home)
    return EpochSet(tuple(sorted(home.iterdir())), warmup, rows, SCHEMA)


def segments_of(epoch: Path) -> list[Path]:
    """The segments of an epoch, in order."""
    return sorted(epoch.glob("*.parquet"))


@contextmanager
def fresh(epoch: Path, place: Path) -> Iterator[Sequence[Path]]:
    """The segments of an epoch as if they had just been written: no disk has seen their bytes yet."""
    copy = shutil.copytree(epoch, place / f"fresh-{epoch.name}")
    try:
        yield segments_of(copy)
    finally:
        shutil.rmtree(copy)


def _write(epoch: Path, rows: pa.Table) -> None:
    epoch.mkdir()
    share = -(-rows.num_rows // SEGMENTS)
    for number in range(SEGMENTS):
        pq.write_table(rows.slice(number * share, share), epoch / f"{number:05d}.parquet", compression="zstd")


def _rows(rows: int, rng: np.random.Generator) -> pa.Table:
    ids = rng.permutation(2 * rows)[:rows]
    names = pc.binary_join_element_wise("customer", pa.array(ids % _NAMES).cast(pa.string()), "-")
    cents = pa.array(rng.integers(10_000_000, size=rows)).cast(pa.decimal128(19, 0))
    amounts = pc.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(pa.decimal128(12, 2))
    times = pa.array(_START_US + np.arange(rows) * 1_000, pa.timestamp("us", "UTC"))
    scores = pa.array(rng.random(rows), mask=rng.random(rows) < 0.1)
    lengths = rng.integers(1, 20, size=rows)
    notes = pc.if_else(
        pa.array(rng.random(rows) < 0.3),
        pc.binary_repeat("x", pa.array(lengths)),
        pa.scalar(None, pa.string()),
    )
    return pa.table([pa.array(ids), names, amounts, times, scores, notes], schema=ARROW)
