"""Windows inside a task that takes its rows itself: a row counts in the windows that are open, and in no other.

Not checked: that Spark SQL, where it prepares the rows, says the same.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import holdfast as hf
from holdfast.flow.windows import EventTime, Sliding
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, BoundKeys
from holdfast.spark.operators.accumulators import accumulator
from holdfast.spark.operators.contract import Times
from holdfast.spark.operators.event_time import Clock
from holdfast.spark.operators.folding import BoundAggregate, Folding
from holdfast.spark.operators.windows import WindowOperator, window_output
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, mixed

SECOND = 1_000_000
COLUMNS = t.StructType([t.StructField("k", t.LongType()), t.StructField("ts", t.TimestampType())])


def operator(size_s: int, slide_s: int) -> WindowOperator:
    """The number of rows by `k`, in windows that leave whenever they change."""
    keys = BoundKeys.of("w", COLUMNS, ["k"])
    clock = Clock.of("w", EventTime("ts", 0, None), COLUMNS, 1, frozenset())
    counted = accumulator("n", hf.count(), [pa.int64()], pa.int64(), False)
    field = t.StructField("n", t.LongType())
    folding = Folding((BoundAggregate(("count(1)",), counted, field, "count", "*"),))
    output = window_output(keys, clock, folding)
    return WindowOperator(
        stage="w",
        keys=keys,
        folding=folding,
        clock=clock,
        kind=Sliding(size_s * SECOND, slide_s * SECOND),
        final=False,
        received=pa.schema([]),
        state=StateSchema(keys.stored, folding.stored),
        output=arrow_schema("w", output),
        output_ddl=output,
        hash_bits=64,
        description={},
        direct=clock.direct(keys, folding, COLUMNS),
    )


def rows(*seconds: int) -> pa.Table:
    """Rows of one key at these times."""
    key, time = [7] * len(seconds), pa.array([s * SECOND for s in seconds], pa.int64())
    return pa.table({HASH: mixed(key), "k": key, "ts": time.view(pa.timestamp("us", "UTC"))})


@pytest.mark.parametrize(
    ("watermark_us", "counts", "late"),
    [
        (None, {5: 1, 10: 2, 15: 2, 20: 1}, {}),
        (10 * SECOND - 1, {10: 2, 15: 2, 20: 1}, {}),
        (10 * SECOND, {15: 2, 20: 1}, {"late": 1}),
        (10 * SECOND + 1, {15: 2, 20: 1}, {"late": 1}),
    ],
    ids=["no watermark", "just before an end", "at an end", "just after an end"],
)
def test_a_row_counts_in_its_windows_until_the_watermark_reaches_their_ends(
    tmp_path: Path, watermark_us: int | None, counts: dict[int, int], late: dict[str, int]
) -> None:
    """Of windows of 10 seconds every 5: those that end at 5 and 10, at 10 and 15, at 15 and 20."""
    window = operator(size_s=10, slide_s=5)
    spine = Spine(tmp_path, window.state, [], ALL)
    changes = window.apply_rows([rows(4, 8, 12)], spine, Times(watermark_us, 0))
    out = changes.outputs["out"]
    ends = [int(end.timestamp()) for end in out["window_end"].to_pylist()]
    assert dict(zip(ends, out["n"].to_pylist(), strict=True)) == counts
    assert changes.layer["_bucket"].to_pylist() == [end * SECOND for end in counts]
    assert changes.counts == late
