"""How each side's epochs are timed: one a file, those without rows aside, and no row too late."""

from __future__ import annotations

import pytest

from holdfast.bench.holdfast_side import commit_to_commit
from holdfast.bench.peers_spark import _seconds_per_file
from holdfast.runtime.progress import EpochSample, StageProgress


def update(rows: int, millis: int, late: int = 0) -> dict[str, object]:
    """What a stream says of a batch."""
    operators = [{"numRowsDroppedByWatermark": late}]
    return {
        "numInputRows": rows,
        "durationMs": {"triggerExecution": millis},
        "stateOperators": operators,
    }


def committed(*epochs: tuple[int, float]) -> StageProgress:
    """A run whose epochs read so many rows and were committed at such a second."""
    samples = [EpochSample(number, rows, 0.5, 0.1, 10, at) for number, (rows, at) in enumerate(epochs)]
    return StageProgress(samples=samples)


def test_a_stream_that_joins_files_into_one_batch_is_not_compared() -> None:
    assert _seconds_per_file([update(10, 1500)], 1) == [1.5]
    with pytest.raises(RuntimeError, match="2 files in 1 batches"):
        _seconds_per_file([update(10, 1500)], 2)


def test_batches_without_rows_are_not_held_against_a_stream() -> None:
    progress = [update(10, 1500), update(0, 700), update(10, 1000), update(0, 900)]
    assert _seconds_per_file(progress, 2) == [1.5, 1.0]


def test_a_stream_that_drops_rows_as_late_is_not_compared() -> None:
    with pytest.raises(RuntimeError, match="dropped 3 rows"):
        _seconds_per_file([update(10, 1500, late=3)], 1)


def test_holdfast_is_timed_from_commit_to_commit() -> None:
    assert commit_to_commit(committed((10, 1.0), (10, 3.0), (10, 4.0))) == [0.5, 2.0, 1.0]


def test_an_epoch_that_only_closes_counts_before_a_file_and_not_behind_the_last() -> None:
    assert commit_to_commit(committed((10, 1.0), (0, 1.5), (10, 3.0), (0, 9.0))) == [0.5, 2.0]
