"""Seeded inputs with event times: ids of which some come again, and keys drawn at random.

Event time advances by a fixed span a file. Within a file it is random and in no order; no row is older than any
row of a file before it, so no row is late for any side, whatever lateness it allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.bench.data import DataSet, made_once, numbered, write_numbered

ID_SCHEMA = "id string, v double, ts timestamp"
KEY_SCHEMA = "k long, v double, ts timestamp"

# 2023-11-14 22:13:23 UTC: on no boundary of a minute or of ten seconds, so that files straddle windows.
FIRST_EVENT_US = 1_700_000_003_000_000

# Ids are numbers scattered by an odd factor modulo a power of two, which maps no two of them to one.
_ID_BITS = 46
_ID_FACTOR = 0x9E3779B97F4A7C15
_ID_DIGITS = 14


def id_set(
    directory: Path, *, rows: int, repeated: float, span_s: int, warmup: int, epochs: int, seed: int
) -> DataSet:
    """Files in which a share of the rows repeats an id of the same or an earlier file; the others are new ids."""
    files = warmup + epochs
    home = directory / f"ids,rows={rows},repeated={repeated},span={span_s},files={files},seed={seed}"
    rng = np.random.default_rng([seed, rows, files])
    tables = _tables_of_ids(rows, new_ids(rows, repeated), span_s, files, rng)
    return DataSet(made_once(home, tables), warmup, rows, ID_SCHEMA)


def key_set(
    directory: Path, *, keys: int, rows: int, span_s: int, warmup: int, epochs: int, seed: int
) -> DataSet:
    """Files of uniformly drawn keys."""
    files = warmup + epochs
    home = directory / f"timed,keys={keys},rows={rows},span={span_s},files={files},seed={seed}"
    rng = np.random.default_rng([seed, keys, rows, files])
    tables = (
        _timed({"k": rng.integers(keys, size=rows)}, number, span_s, rows, rng) for number in range(files)
    )
    return DataSet(made_once(home, tables), warmup, rows, KEY_SCHEMA)


def key_file(directory: Path, number: int, *, keys: int, rows: int, span_s: int, seed: int) -> Path:
    """The file with this number, of uniformly drawn keys, made if it is not there; it depends on nothing before it."""
    path = numbered(directory, number)
    if not path.exists():
        rng = np.random.default_rng([seed, keys, rows, number])
        write_numbered(
            directory, number, _timed({"k": rng.integers(keys, size=rows)}, number, span_s, rows, rng)
        )
    return path


def new_ids(rows: int, repeated: float) -> int:
    """How many of a file's rows have an id that no row had before.

    >>> new_ids(200, 0.1)
    180
    """
    return rows - round(rows * repeated)


def _tables_of_ids(
    rows: int, new: int, span_s: int, files: int, rng: np.random.Generator
) -> Iterator[pa.Table]:
    for number in range(files):
        known = (number + 1) * new
        again = rng.integers(known, size=rows - new)
        numbers = rng.permutation(np.concatenate([np.arange(known - new, known), again]))
        yield _timed({"id": _named(numbers)}, number, span_s, rows, rng)


def _named(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Ids of 20 characters, neighbours far apart in their order."""
    scattered = (numbers.astype(np.uint64) * np.uint64(_ID_FACTOR)) & np.uint64((1 << _ID_BITS) - 1)
    digits = pc.utf8_lpad(pc.cast(pa.array(scattered), pa.string()), _ID_DIGITS, "0")
    return pc.binary_join_element_wise("order", digits, "-")


def _timed(
    columns: dict[str, object], number: int, span_s: int, rows: int, rng: np.random.Generator
) -> pa.Table:
    span_us = span_s * 1_000_000
    micros = FIRST_EVENT_US + number * span_us + rng.integers(span_us, size=rows)
    times = pa.array(micros).view(pa.timestamp("us", "UTC"))
    return pa.table({**columns, "v": rng.random(rows), "ts": times})
