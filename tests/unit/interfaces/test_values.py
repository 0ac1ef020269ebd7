"""Every type that state can hold has a JSON form and a text form."""

from __future__ import annotations

import json
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa

from holdfast.interfaces.cli.values import as_json, as_text


def test_values_become_json_that_any_parser_reads() -> None:
    table = pa.table(
        {
            "n": pa.array([1 << 62, None]),
            "x": pa.array([float("nan"), float("-inf")]),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "b": pa.array([b"\x00\xff", b""]),
            "day": pa.array([date(2026, 1, 2), None]),
            "span": pa.array([timedelta(seconds=90), None]),
            "ts": pa.array([1_500_000, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "local": pa.array([1_500_000, None], pa.int64()).cast(pa.timestamp("us")),
            "far": pa.array([400_000_000_000_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "s": pa.array([{"a": [1.5, None], "at": 0}, None], pa.struct({"a": pa.list_(pa.float64()), "at": pa.timestamp("us")})),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )  # fmt: skip
    first, second = json.loads(json.dumps(as_json(table), allow_nan=False))
    assert first == {
        "n": 1 << 62,
        "x": "NaN",
        "d": "1.50",
        "b": "00ff",
        "day": "2026-01-02",
        "span": 90.0,
        "ts": "1970-01-01T00:00:01.500000Z",
        "local": "1970-01-01T00:00:01.500000",
        "far": "14645-06-30T15:06:40.000000Z",
        "s": {"a": [1.5, None], "at": "1970-01-01T00:00:00"},
        "m": [["k", 1]],
    }
    assert (second["x"], second["b"], second["ts"]) == ("-Infinity", "", None)
    assert as_text(table)[1][0] == "NULL"
