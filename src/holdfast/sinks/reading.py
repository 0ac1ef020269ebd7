"""How a sink reads the segments of an epoch: whole batches, and a file of ours that is torn is named as such."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core.errors import SinkError, StorageError


def has_rows(segment: Path) -> bool:
    """Whether there is anything in a segment, by its footer."""
    with _ours(segment):
        return bool(pq.read_metadata(segment).num_rows)


def rows_in(segments: Sequence[Path]) -> int:
    """How many rows there are in segments, by their footers."""
    total = 0
    for segment in segments:
        with _ours(segment):
            total += pq.read_metadata(segment).num_rows
    return total


def batches(segments: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of segments that were written with `schema`, in the order of the segments."""
    for segment in segments:
        with _ours(segment), pq.ParquetFile(segment) as file:
            _check(segment, file.schema_arrow, schema)
            yield from file.iter_batches()


def _check(segment: Path, found: pa.Schema, schema: pa.Schema) -> None:
    if [(field.name, field.type) for field in found] != [(field.name, field.type) for field in schema]:
        raise SinkError(
            f"{segment} was written with other columns than the stage has now: "
            f"{_listed(found)} instead of {_listed(schema)}",
            operation="publish",
            hint="Run the flow once with the code that wrote it, so that it is published, then change the code.",
        )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@contextmanager
def _ours(segment: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"the segment {segment} is lost or torn: {error}", operation="publish") from error
