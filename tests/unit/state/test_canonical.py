from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core.errors import StateSchemaError
from holdfast.state.canonical import (
    ascends_in_order,
    canonical_order,
    comparable,
    in_slots,
    same,
    same_as_next,
    slot_floor,
    slot_of,
)
from unit.state.helpers import mixed

NAN = float("nan")
MINUS_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
LIST = pa.list_(pa.string())
STRUCT = pa.struct([("a", pa.float64()), ("b", pa.list_(pa.int32()))])


def test_slots_ascend_as_signed_hashes_do():
    h = np.array([-(2**63), -1, 0, 2**63 - 1])
    assert slot_of(h).tolist() == [0, 2047, 2048, 4095]
    assert [slot_of(np.array([slot_floor(slot)]))[0] for slot in (0, 7, 2048, 4095)] == [0, 7, 2048, 4095]
    assert in_slots(h, (0, 2048)).tolist() == [True, True, False, False]
    assert in_slots(h, (2047, 4096)).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "distinct", "alike"),
    [
        (pa.int64(), [None, 0, -1], []),
        (pa.bool_(), [None, False, True], []),
        (pa.float64(), [None, 0.0, NAN, 1.5, float("inf")], [(0.0, -0.0), (NAN, MINUS_NAN)]),
        (pa.float32(), [None, 0.0, NAN, 1.5], [(0.0, -0.0)]),
        (pa.string(), [None, "", "a", "ab", "ä"], []),
        (pa.large_string(), [None, "", "a"], []),
        (pa.binary(), [None, b"", b"\0", b"\0\0"], []),
        (pa.binary(2), [None, b"ab", b"\0\0"], []),
        (pa.decimal128(20, 2), [None, Decimal("0.00"), Decimal("-1.10"), Decimal("1.10")], []),
        (pa.date32(), [None, date(1970, 1, 1), date(2024, 2, 29)], []),
        (pa.timestamp("us", "UTC"), [None, datetime(1970, 1, 1, tzinfo=UTC)], []),
        (pa.duration("us"), [None, 0, 5], []),
        (LIST, [None, [], [None], [""], ["a", "b"], ["ab"], ["a", None], ["", "ab"]], []),
        (pa.large_list(pa.int8()), [None, [], [None], [0]], []),
        (pa.list_(pa.int16(), 2), [None, [1, 2], [2, 1], [None, 1]], []),
        (pa.list_(LIST), [None, [], [[]], [None], [["a"], ["b"]], [["a", "b"]]], []),
        (
            STRUCT,
            [
                None,
                {"a": None, "b": None},
                {"a": 0.0, "b": []},
                {"a": NAN, "b": [1]},
                {"a": 0.0, "b": [None]},
            ],
            [({"a": 0.0, "b": []}, {"a": -0.0, "b": []}), ({"a": NAN, "b": [1]}, {"a": MINUS_NAN, "b": [1]})],
        ),
    ],
    ids=str,
)
def test_keys_are_the_same_exactly_if_they_are_one_key(kind, distinct, alike):
    pairs = [(x, y, i == j) for i, x in enumerate(distinct) for j, y in enumerate(distinct)]
    pairs += [(x, y, True) for x, y in alike]
    # A slice of longer arrays: nothing may depend on where an array starts.
    left = pa.array([distinct[-1], *(x for x, _, _ in pairs)], kind).slice(1)
    right = pa.array([*(y for _, y, _ in pairs), None], kind).slice(0, len(pairs))
    assert same([left], [right]).tolist() == [expected for _, _, expected in pairs]


def test_every_column_of_a_key_counts():
    one, other = pa.array([1, 1, None]), pa.array([1, 2, None])
    text = pa.array(["a", "a", "a"])
    assert same([one, text], [other, text]).tolist() == [True, False, True]


def test_what_lies_under_nulls_does_not_count():
    garbage = pa.array([7, 8], pa.int64())
    masked = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\0"), garbage.buffers()[1]])
    struct = pa.StructArray.from_arrays([masked], ["a"])
    assert same([struct], [pa.array([{"a": None}] * 2, struct.type)]).all()


def test_a_map_cannot_be_a_key():
    with pytest.raises(StateSchemaError, match="cannot hold"):
        comparable(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))


@pytest.mark.parametrize("kind", ["int", "string", "nested"])
@pytest.mark.parametrize("bits", [64, 1], ids=["full hash", "colliding hash"])
def test_order_does_not_depend_on_how_rows_came_in(kind, bits):
    rng = np.random.default_rng(3)
    numbers = rng.permutation(500)
    keys = {
        "int": pa.array(numbers),
        "string": pa.array([None if n == 7 else f"k{n}" for n in numbers]),
        "nested": pa.array([[str(n), None] for n in numbers]),
    }[kind]
    h = mixed(numbers) & -(1 << (64 - bits))
    bucket = numbers % 3 - 1
    order = canonical_order(bucket, h, [keys])
    assert sorted(order) == list(range(500))
    assert ascends_in_order(bucket[order], h[order])
    shuffle = rng.permutation(500)
    again = canonical_order(bucket[shuffle], h[shuffle], [keys.take(pa.array(shuffle))])
    assert (numbers[order] == numbers[shuffle][again]).all()


@pytest.mark.parametrize("ages", [[0, 1, 2, 0, 1, 2], [2, 1, 0, 0, 2, 1]])
def test_equal_keys_stand_by_age_even_between_colliding_keys(ages):
    keys = pa.array(["b", "b", "b", "a", "a", "a"])
    zero, age = np.zeros(6, np.int64), np.array(ages)
    order = canonical_order(zero, zero, [keys], age)
    assert keys.take(pa.array(order)).to_pylist() == ["a", "a", "a", "b", "b", "b"]
    assert age[order].tolist() == [0, 1, 2, 0, 1, 2]
    assert same_as_next(zero, zero, [keys.take(pa.array(order))]).tolist() == [True, True, False, True, True]


def test_more_buckets_than_a_radix_sort_takes_are_ordered_too():
    bucket = np.random.default_rng(1).permutation(70_000)
    order = canonical_order(bucket, np.zeros(70_000, np.int64), [pa.array(bucket)])
    assert (bucket[order] == np.arange(70_000)).all()


def test_a_key_of_no_columns_is_one_key():
    zero = np.zeros(2, np.int64)
    assert same_as_next(zero, zero, []).tolist() == [True]
    assert canonical_order(zero, zero, []).tolist() == [0, 1]
