"""What a function is called with, and what becomes of its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core.errors import SinkError, StorageError
from holdfast.sinks.contract import Sink
from holdfast.sinks.foreach import ForeachSink
from holdfast.testing.epochs import FLOW, SCHEMA, VALUES, record, segments


def test_it_is_called_with_the_rows_the_epoch_and_a_token_and_not_without_rows(directory: Path) -> None:
    calls: list[tuple[pa.Table, int, str]] = []
    sink: Sink = ForeachSink(lambda *call: calls.append(call), "totals-sink-1", SCHEMA)
    assert sink.open(FLOW, 0, 1) is None
    for epoch in range(len(VALUES)):
        sink.publish(record(epoch), segments(directory, epoch))
    assert [(rows["value"].to_pylist(), epoch) for rows, epoch, _ in calls] == [
        ([0, 1, 2], 0),
        ([20, 21, 22], 2),
        ([40, 41, 42], 4),
    ]
    assert [token for *_, token in calls] == [f"orders:totals-sink-1:0:{epoch}:0" for epoch in (0, 2, 4)]
    sink.close()


def test_the_token_is_the_same_whoever_calls_and_different_for_anything_else() -> None:
    sink = ForeachSink(print, "a", SCHEMA)
    one = record(3)
    assert sink.token(one) == sink.token(replace(one, generation=9))
    others = [{"flow": "x"}, {"branch": 1}, {"epoch": 4}, {"revision": 1}]
    tokens = {sink.token(one), *(sink.token(replace(one, **other)) for other in others)}
    tokens.add(ForeachSink(print, "b", SCHEMA).token(one))
    assert len(tokens) == 6


def test_the_ledger_says_where_it_goes_on() -> None:
    sink = ForeachSink(print, "a", SCHEMA)
    assert sink.open(FLOW, 0, 2, start=5) == record(4, generation=2)


def test_an_error_of_the_function_names_the_sink_and_the_epoch(directory: Path) -> None:
    def fail(rows: pa.Table, epoch: int, token: str) -> None:
        raise ValueError("no")

    with pytest.raises(SinkError, match="'totals-sink-1' raised ValueError: no") as caught:
        ForeachSink(fail, "totals-sink-1", SCHEMA).publish(record(0), segments(directory, 0))
    assert caught.value.epoch == 0
    assert not caught.value.heals
    assert "same token" in str(caught.value.hint)


def test_a_lost_segment_is_our_own_fault_and_the_function_is_not_called(directory: Path) -> None:
    def never(rows: pa.Table, epoch: int, token: str) -> None:
        raise AssertionError

    with pytest.raises(StorageError, match="gone.parquet"):
        ForeachSink(never, "a", SCHEMA).publish(record(0), [directory / "gone.parquet"])
