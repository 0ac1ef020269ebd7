"""Keys compare as Python's values do, orders and digests do not depend on layout, for any nested type.

The model of a key is its Python value with one NaN and one zero. Not checked here: which order keys stand
in, only that there is exactly one.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.canonical import canonical_order, same, same_as_next
from holdfast.state.digest import digest, is_exact
from holdfast.state.encode import encode

ATOMS = [
    (pa.int64(), st.integers(-2, 2)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, -math.inf])),
    (pa.string(), st.text("ab\0", max_size=2)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.decimal128(5, 1), st.decimals(-1, 1, places=1)),
]


def nested(kinds):
    lists = kinds.map(lambda k: (pa.list_(k[0]), st.lists(st.none() | k[1], max_size=3)))
    structs = st.lists(kinds, min_size=1, max_size=3).map(
        lambda ks: (
            pa.struct([(f"f{i}", kind) for i, (kind, _) in enumerate(ks)]),
            st.fixed_dictionaries({f"f{i}": st.none() | values for i, (_, values) in enumerate(ks)}),
        )
    )
    return lists | structs


KINDS = st.recursive(st.sampled_from(ATOMS), nested, max_leaves=4)


@st.composite
def columns(draw, rows_min=1):
    kind, values = draw(KINDS)
    return kind, draw(st.lists(st.none() | values, min_size=rows_min, max_size=12))


def identity(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return ("struct", *(identity(item) for item in value.values()))
    if isinstance(value, list):
        return ("list", *(identity(item) for item in value))
    return (type(value).__name__, value)


@given(columns())
def test_keys_and_their_bytes_are_equal_exactly_if_the_values_are(column):
    kind, values = column
    rows = range(len(values))
    expected = [identity(values[i]) == identity(values[j]) for i in rows for j in rows]
    array = pa.array(values, kind)
    left = array.take(pa.array([i for i in rows for _ in rows]))
    right = array.take(pa.array([j for _ in rows for j in rows]))
    assert same([left], [right]).tolist() == expected
    assert [a == b for a, b in zip(*(encode(x).to_pylist() for x in (left, right)), strict=True)] == expected


@given(columns(), st.randoms(use_true_random=False), st.integers(0, 64))
def test_there_is_one_order_however_rows_come_in(column, random, cut):
    kind, values = column
    distinct = list({identity(value): value for value in values}.values())
    rows = [(bucket, value) for bucket in (3, -1) for value in distinct]
    # Equal keys have equal hashes; `cut` makes different keys share them.
    hashes = {identity(v): i * 0x9E3779B97F4A7C15 % 2**64 >> cut for i, v in enumerate(distinct)}
    seen = []
    for _ in range(3):
        random.shuffle(rows)
        bucket = np.array([b for b, _ in rows])
        h = np.array([hashes[identity(v)] for _, v in rows], np.uint64).view(np.int64)
        keys = pa.array([v for _, v in rows], kind)
        order = canonical_order(bucket, h, [keys])
        assert sorted(order) == list(range(len(rows)))
        ordered = [(int(bucket[i]), int(h[i]), identity(rows[i][1])) for i in order]
        assert [row[:2] for row in ordered] == sorted(row[:2] for row in ordered)
        assert not same_as_next(bucket[order], h[order], [keys.take(pa.array(order))]).any()
        seen.append(ordered)
    assert seen[0] == seen[1] == seen[2]


@given(columns(), columns(), st.data())
def test_digests_depend_on_values_and_not_on_layout(one, other, data):
    kind, values = one
    cut = data.draw(st.integers(0, len(values)))
    array = pa.array(values, kind)
    wanted = digest(pa.table({"c": array}))
    pieces = pa.chunked_array([array.slice(0, cut), pa.array(values[cut:], kind)], kind)
    assert digest(pa.table({"c": pieces})) == wanted
    assert digest(pa.table({"c": pa.concat_arrays([array, array])}).slice(len(values))) == wanted
    if is_exact(kind) and (one[0], list(map(identity, values))) != (other[0], list(map(identity, other[1]))):
        assert digest(pa.table({"c": pa.array(other[1], other[0])})) != wanted


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40))
def test_age_orders_what_is_otherwise_equal(rows):
    bucket, key, age = (np.array(column) for column in zip(*rows, strict=True))
    order = canonical_order(bucket, np.zeros(len(rows), np.int64), [pa.array(key)], age)
    assert [rows[i] for i in order] == sorted(rows)
