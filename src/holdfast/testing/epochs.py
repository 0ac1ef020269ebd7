"""A small stream of epochs that the suites publish, and rows that are hard on a sink."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.sinks.contract import Sink, SinkRecord

FLOW = "orders"
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False), ("name", pa.string())])

# The values of each epoch's segments. Epochs 1 and 3 have no rows: one has an empty segment, one has none.
VALUES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0, 1), (2,)),
    ((),),
    ((20, 21), (), (22,)),
    (),
    ((40,), (41, 42)),
)
EPOCHS = len(VALUES)

HUGE_ROWS = 200_000

_MOMENT = datetime(2024, 3, 31, 1, 59, 59, 999_999, tzinfo=UTC)

ODD: dict[str, pa.Array] = {
    "long": pa.array([2**63 - 1, -(2**63), None]),
    "tiny": pa.array([127, -128, None], pa.int8()),
    "double": pa.array([float("nan"), float("-inf"), None]),
    "zero": pa.array([-0.0, 5e-324, None]),
    "single": pa.array([1.5, 3.4028234663852886e38, None], pa.float32()),
    "decimal": pa.array([Decimal("-99999999999999999999.999999999999999999"), Decimal(0), None], pa.decimal128(38, 18)),
    "money": pa.array([Decimal("0.01"), Decimal("-12345678.90"), None], pa.decimal128(10, 2)),
    "yes": pa.array([True, False, None]),
    "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    "moment": pa.array([_MOMENT, datetime(1883, 11, 18, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "local": pa.array([_MOMENT.replace(tzinfo=None), datetime.fromisoformat("2262-04-12"), None], pa.timestamp("us")),
    "bytes": pa.array([bytes(range(256)), b"", None]),
}  # fmt: skip

NESTED: dict[str, pa.Array] = {
    "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "struct": pa.array([{"a": 1, "b": None}, {"a": None, "b": "x"}, None]),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
}

HOSTILE: tuple[str | None, ...] = (
    None,
    "",
    " ",
    "NULL",
    "\\N",
    "\\",
    "'; DROP TABLE orders; --",
    'quoted "twice" and `once`',
    "tab\tand\r\nline",
    "comma,semicolon;{}[]",
    "%s %(name)s :name ? $1",
    "\u202eright to left, zero\u200bwidth, e\u0301",
    "\U0001f40b" * 3,
    "x" * 1_000_000,
)

HOSTILE_NAMES = ('a "quoted" name', "select", "Ünï cödé", "semi;colon", "MixedCase")


def record(
    epoch: int, generation: int = 1, branch: int = 0, revision: int = 0, flow: str = FLOW
) -> SinkRecord:
    """The record of an epoch of the stream."""
    return SinkRecord(flow, branch, epoch, revision, generation)


def rows(values: Sequence[int]) -> pa.Table:
    """Rows of the stream."""
    return pa.table([values, [f"n{value}" for value in values]], schema=SCHEMA)


def write_segments(directory: Path) -> Path:
    """The files of the stream."""
    for epoch, parts in enumerate(VALUES):
        for number, values in enumerate(parts):
            write(directory / f"{epoch}-{number}.parquet", rows(values))
    return directory


def write(path: Path, table: pa.Table) -> Path:
    """One segment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
    return path


def segments(directory: Path, epoch: int) -> list[Path]:
    """The files of one epoch."""
    return [directory / f"{epoch}-{number}.parquet" for number in range(len(VALUES[epoch]))]


def expected(until: int = EPOCHS) -> list[int]:
    """What a reader sees when so many epochs are published."""
    return sorted(value for parts in VALUES[:until] for part in parts for value in part)


def feed(sink: Sink, directory: Path, generation: int, until: int = EPOCHS) -> SinkRecord | None:
    """Open the sink and publish what it does not have; say what it had."""
    last = sink.open(FLOW, 0, generation)
    publish_after(sink, last, directory, generation, until)
    return last


def publish_after(
    sink: Sink, last: SinkRecord | None, directory: Path, generation: int, until: int = EPOCHS
) -> None:
    """Publish the epochs after a record."""
    for epoch in range(last.epoch + 1 if last else 0, until):
        sink.publish(record(epoch, generation), segments(directory, epoch))


def odd_rows(names: Sequence[str]) -> pa.Table:
    """Rows of odd types, with a number to tell them apart."""
    every = ODD | NESTED
    return pa.table({"n": pa.array([0, 1, 2]), **{name: every[name] for name in names}})
