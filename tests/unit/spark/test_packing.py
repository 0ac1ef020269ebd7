"""Columns of two sides share places by type; nothing is sent that the other side could use."""

from __future__ import annotations

from pyspark.sql import types as t

from holdfast.spark.operators.packing import Packing

TYPES = {
    "long": t.LongType(),
    "int": t.IntegerType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "timestamp": t.TimestampType(),
    "map": t.MapType(t.StringType(), t.IntegerType()),
}


def packed(left: str, right: str, keys: list[str], times: tuple[str, str] = ("ts", "ts")) -> Packing:
    """Sides as "name type, ..."; reading real DDL would need a session."""
    columns = [[column.split() for column in side.split(", ")] for side in (left, right)]
    schemas = [t.StructType([t.StructField(name, TYPES[kind]) for name, kind in side]) for side in columns]
    return Packing.of("j", schemas, keys, times)


def test_sides_of_the_same_types_need_no_place_of_their_own() -> None:
    made = packed("k long, v double, ts timestamp", "at timestamp, w double, k long", ["k"], ("ts", "at"))
    assert made.sides == ({"k": 0, "ts": 1, "v": 2}, {"k": 0, "at": 1, "w": 2})
    assert [str(kind) for kind in made.stored.types] == ["int64", "timestamp[us, tz=UTC]", "double"]


def test_what_has_no_counterpart_gets_a_place() -> None:
    made = packed("k long, ts timestamp, a string, b int", "k long, c int, ts timestamp, d int", ["k"])
    assert made.sides == ({"k": 0, "ts": 1, "a": 2, "b": 3}, {"k": 0, "ts": 1, "c": 3, "d": 4})


def test_keys_meet_whatever_their_order_and_types() -> None:
    made = packed(
        "b long, a long, c string, ts timestamp", "c string, ts timestamp, a long, b long", ["a", "c", "b"]
    )
    assert [made.place(side, key) for key in "acb" for side in (0, 1)] == ["c0", "c0", "c1", "c1", "c2", "c2"]


def test_a_time_that_is_a_key_is_sent_once() -> None:
    made = packed("k long, ts timestamp", "k long, ts timestamp", ["k", "ts"])
    assert made.sides == ({"k": 0, "ts": 1}, {"k": 0, "ts": 1})
    mixed = packed("ts timestamp, x timestamp", "ts timestamp, at timestamp", ["ts"], ("ts", "at"))
    assert (mixed.place(0, "ts"), mixed.place(1, "ts"), mixed.place(1, "at")) == ("c0", "c0", "c1")


def test_maps_are_carried_but_settle_no_order() -> None:
    made = packed("k long, ts timestamp, m map", "k long, ts timestamp", ["k"])
    assert made.comparable == ["c0", "c1"]
    assert made.place(0, "m") == "c2"
