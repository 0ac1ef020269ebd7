"""Rows of a hash between two numbers: any layers equal a dictionary, and nothing outside the range is visited."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.state.between import Ranges, expanded, rows_between
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.run import forget_open_runs
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, mixed

TIMED = StateSchema(
    pa.schema([("time", pa.int64()), ("ordinal", pa.int64())]), pa.schema([("name", pa.string())])
)


@pytest.fixture(autouse=True)
def fresh_cache():
    forget_open_runs()


def written(root, number, rows, slots=ALL, rows_max=1 << 18):
    """A layer of {(bucket, h, time, ordinal): name, or None for a tombstone}."""
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    bucket, h, time, ordinal = (pa.array(column, pa.int64()) for column in columns)
    names = pa.array(rows.values(), pa.string())
    table = pa.table([bucket, h, names.is_valid(), time, ordinal, names], TIMED.changes)
    return LayerInfo(number, number, write_layer(root, str(number), table, TIMED, slots, rows_max))


def found_in(spine, sought):
    """[(needle, bucket, time, ordinal, name)] in the order of the answer."""
    found = spine.lookup_between(sought)
    columns = [found.rows[name].to_pylist() for name in ("time", "ordinal", "name")]
    return list(zip(found.needle.tolist(), found.bucket.tolist(), *columns, strict=True))


def ranges(*needles):
    """Needles of (h, low, high, first bucket, last bucket)."""
    columns = zip(*needles, strict=True) if needles else [()] * 5
    return Ranges(*(np.array(column, np.int64) for column in columns))


HASHES = [int(h) for h in mixed(range(6))]
places = st.tuples(st.integers(0, 3), st.sampled_from(HASHES), st.integers(-4, 12), st.integers(0, 2))
changes = st.dictionaries(places, st.none() | st.sampled_from("abc"), max_size=40)
needles = st.lists(
    st.tuples(
        st.sampled_from([*HASHES, 7]),
        st.integers(-6, 14),
        st.integers(-6, 14),
        st.integers(-1, 4),
        st.integers(-1, 4),
    ),
    max_size=12,
)


@settings(max_examples=settings().max_examples)
@given(
    layers=st.lists(changes, max_size=4),
    sought=needles,
    floor=st.none() | st.integers(-1, 4),
    rows_max=st.integers(1, 60),
)
def test_any_layers_equal_a_dictionary(tmp_path_factory, layers, sought, floor, rows_max):
    root = tmp_path_factory.mktemp("between")
    infos = [written(root, number, rows, rows_max=rows_max) for number, rows in enumerate(layers)]
    model = {place: name for rows in layers for place, name in rows.items()}
    expected = [
        (needle, bucket, time, ordinal, name)
        for needle, (h, low, high, first, last) in enumerate(sought)
        for (bucket, hash_, time, ordinal), name in model.items()
        if name is not None and hash_ == h and low <= time <= high and first <= bucket <= last
        if floor is None or bucket >= floor
    ]
    spine = Spine(root, TIMED, infos, ALL, floor)
    assert found_in(spine, ranges(*sought)) == sorted(expected)


def test_rows_outside_the_range_of_a_hot_hash_are_not_visited(work):
    """A hash with 100,000 rows: what is examined follows what is found."""
    h = HASHES[0]
    rows = {(0, h, time, 0): "x" for time in range(100_000)}
    spine = Spine(work, TIMED, [written(work, 0, rows)], ALL)
    found = spine.lookup_between(ranges((h, 500, 509, 0, 0), (h, 99_990, 10**9, 0, 0), (h, -5, -1, 0, 0)))
    assert np.bincount(found.needle).tolist() == [10, 10]
    assert spine.rows_examined == 20


def test_runs_of_other_buckets_stay_closed_and_bloom_filters_are_asked(work):
    h, other = HASHES[:2]
    layers = [written(work, b, {(b, h, t, 0): "x" for t in range(5)}) for b in range(4)]
    spine = Spine(work, TIMED, layers, ALL)
    assert len(found_in(spine, ranges((h, 0, 9, 1, 2)))) == 10
    assert (spine.runs_opened, spine.runs_skipped_by_bloom) == (2, 0)
    assert found_in(spine, ranges((other, 0, 9, 0, 3))) == []
    assert (spine.runs_opened, spine.runs_skipped_by_bloom) == (6, 4)


def test_needles_of_other_slots_are_a_mistake(work):
    spine = Spine(work, TIMED, [], (0, 1))
    with pytest.raises(HoldfastError, match="sought in slots"):
        spine.lookup_between(ranges((2**62, 0, 1, 0, 0)))


@given(st.lists(st.tuples(st.integers(-5, 20), st.integers(-5, 20))))
def test_ranges_are_expanded_as_loops_would(pairs):
    start, stop = (np.array(column, np.int64) for column in zip(*pairs, strict=True)) if pairs else ([], [])
    place, number = expanded(np.asarray(start, np.int64), np.asarray(stop, np.int64))
    expected = [(i, n) for i, (lo, hi) in enumerate(pairs) for n in range(lo, hi)]
    assert list(zip(place.tolist(), number.tolist(), strict=True)) == expected


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30).map(sorted),
    sought=st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 10), st.integers(-1, 10)), max_size=10),
)
def test_rows_between_equal_a_nested_loop(rows, sought):
    h, number = np.array(rows, np.int64).reshape(-1, 2).T
    needles = np.array(sought, np.int64).reshape(-1, 3).T
    place, row = rows_between(np.ascontiguousarray(h), np.ascontiguousarray(number), *needles)
    expected = [
        (i, j)
        for i, (hash_, low, high) in enumerate(sought)
        for j, (other, n) in enumerate(rows)
        if other == hash_ and low <= n <= high
    ]
    assert list(zip(place.tolist(), row.tolist(), strict=True)) == expected
