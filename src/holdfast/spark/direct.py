"""The direct way in: a task reads the epoch's Parquet files itself and keeps the rows that are its own.

Where no code of the user's stands between an input and the operator, Spark SQL would only read, hash and exchange
rows before it hands them to Python. Every task reads all of them instead: that is less work than the exchange as
long as tasks are few, and the planner sees to that. Rows, hashes and order are those of the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.spark.casting import as_declared, unreadable
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import HASH
from holdfast.spark.operators.contract import Direct
from holdfast.spark.operators.event_time import INPUT
from holdfast.state.canonical import in_slots
from holdfast.state.run import LostFileError
from holdfast.state.schema import single
from holdfast.storage.atomic import refuse_exhaustion


@dataclass(frozen=True)
class DirectFile:
    """A Parquet file with the columns that the stage's input declares."""

    path: str
    feed: int  # its number among the stage's feeds
    side: int  # of a join; elsewhere there is one
    segment: str | None  # its name in the work directory, if it is ours and can be made again
    declared: pa.Schema | None = None  # of a source: what the types that the file has are made


def read_rows(
    files: Sequence[DirectFile], direct: Direct, bits: int, slots: tuple[int, int]
) -> list[pa.Table | None]:
    """By side, the rows of files whose key belongs to the slots, with their hash and their feed; None if none does."""
    found: list[pa.Table | None] = []
    for side in range(len(direct.columns)):
        own = [file for file in files if file.side == side]
        parts = [part for file in own for part in _parts(file, direct, bits, slots) if part.num_rows]
        found.append(pa.concat_tables(parts).combine_chunks() if parts else None)
    return found


def _parts(file: DirectFile, direct: Direct, bits: int, slots: tuple[int, int]) -> Iterator[pa.Table]:
    for rows in _row_groups(file, direct.columns[file.side]):
        h = hash_columns([single(rows[name]) for name in direct.keys], bits)
        own = rows.append_column(HASH, pa.array(h)).filter(pa.array(in_slots(h, slots)))
        origin = pa.array(np.full(own.num_rows, file.feed, np.int32))
        yield own.append_column(INPUT, origin)


def _row_groups(file: DirectFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(Path(file.path), memory_map=True) as opened:
            for number in range(opened.num_row_groups):
                # Tasks are as many as cores already: no threads inside them.
                rows = opened.read_row_group(number, list(columns), use_threads=False)
                yield as_declared(rows, file.declared) if file.declared else rows
    except (OSError, pa.ArrowException) as error:
        refuse_exhaustion(error, "read", file.path)
        if file.segment:
            raise LostFileError(file.segment, str(error)) from error
        raise unreadable(file.path, error) from error
