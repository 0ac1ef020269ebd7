"""Event-time test data, and the account that a flow's own ledger gives of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from batch import plans, read_sink

MINUTE_US = 60_000_000
# An hour before midnight, UTC; central Europe puts its clocks forward in the same night.
START_US = 1_774_738_800_000_000
UTC_TIME = pa.timestamp("us", "UTC")


def events(
    seed: int,
    rows: int,
    *,
    keys: int = 5,
    span_us: int = 4 * 3600 * 1_000_000,
    disorder_us: int = 0,
    nulls: float = 0.0,
) -> pa.Table:
    """Rows in order of arrival: event times rise over `span_us`, each up to `disorder_us` behind its place.

    Times are whole seconds, so that many are equal and many lie on window borders; some keys are null, and a
    share of the times, if asked for.
    """
    rng = np.random.default_rng(seed)
    place = np.sort(rng.integers(0, span_us, rows))
    behind = rng.integers(0, disorder_us + 1, rows)
    time = START_US + (place - behind) // 1_000_000 * 1_000_000
    key = rng.integers(0, keys + 1, rows)
    names = pa.array([f"k{i}" for i in range(keys + 1)])
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "k": pa.DictionaryArray.from_arrays(pa.array(key, mask=key == keys), names).cast(pa.string()),
            "v": pa.array(rng.integers(-50, 50, rows), mask=rng.random(rows) < 0.1),
            "ts": pa.array(time, pa.int64(), mask=rng.random(rows) < nulls).cast(UTC_TIME),
        }
    )


def micros(column: pa.ChunkedArray) -> np.ndarray:
    """Times as numbers; a null is the smallest."""
    return np.asarray(column.cast(pa.int64()).fill_null(np.iinfo(np.int64).min))


def ids_of(sink: Path) -> list[int]:
    """The ids of all rows of a sink, in order; a sink that was given nothing may not be there."""
    found = read_sink(sink) if sink.exists() else None
    return sorted(found["id"].to_pylist()) if found is not None and found.num_rows else []


def at(*seconds: float | None) -> pa.Array:
    """Times by their seconds after the start."""
    values = [None if s is None else START_US + int(s * 1_000_000) for s in seconds]
    return pa.array(values, pa.int64()).cast(UTC_TIME)


def watermark_of_rows(
    work: Path, stage: str, rows: int, per_epoch: int, source: str | None = None
) -> np.ndarray:
    """For each row of a source, in order of arrival, the watermark of the epoch that read it.

    A stage with several inputs needs the name of the one.
    """
    lowest = np.iinfo(np.int64).min
    reached = np.full(rows, lowest)
    for plan in plans(work, stage):
        ranges: dict[str, list[int]] = plan["ranges"]  # type: ignore[assignment]
        start, stop = ranges[f"source:{source}"] if source else next(iter(ranges.values()))
        reached[start * per_epoch : stop * per_epoch] = (
            lowest if plan["watermark_us"] is None else plan["watermark_us"]
        )
    return reached
