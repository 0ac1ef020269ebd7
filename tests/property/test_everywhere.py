"""A key is found in every bucket it has a row in, and the search touches only what may hold one.

The counters of the spine are counted here; that its answers equal a dictionary after any sequence of steps is
checked in `test_spine`. Here they are compared for many keys, layers and buckets at once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError, StateSchemaError
from holdfast.state import everywhere
from holdfast.state.bloom import Probes
from holdfast.state.layer import LayerInfo
from holdfast.state.run import LostFileError, forget_open_runs
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, COUNTS, counts, layer, mixed, needles_of

BITS = [64, 8, 2]


@pytest.fixture(autouse=True)
def fresh_cache():
    forget_open_runs()


def cut_to(table, bits):
    """A change table whose hashes keep their top bits alone."""
    h = table["_h"].to_numpy() & -(1 << (64 - bits))
    return table.set_column(1, table.schema.field(1), pa.array(h))


def everywhere_of(spine, keys, bits=64):
    """[(key, bucket, n)] in the order of the answer, of keys that are sought in the order of their hashes."""
    h = mixed(keys) & -(1 << (64 - bits))
    order = np.argsort(h, kind="stable")
    k = np.asarray(keys, np.int64)[order]
    found = spine.lookup_everywhere(h[order], [pa.array(k)])
    places = list(zip(found.needle.tolist(), found.bucket.tolist(), strict=True))
    assert places == sorted(set(places))
    return list(
        zip(k[found.needle].tolist(), found.bucket.tolist(), found.values["n"].to_pylist(), strict=True)
    )


@pytest.fixture
def searches(monkeypatch):
    """How many hashes each search of a bucket looked for."""
    sizes = []

    def spied(hashes, needles):
        sizes.append(len(needles))
        return np.searchsorted(hashes, needles)

    monkeypatch.setattr(everywhere, "first_not_below", spied)
    return sizes


def test_a_key_is_found_in_all_its_buckets(work):
    old = pa.concat_tables([counts({1: 10, 2: 20}, bucket=5), counts({1: 11}, bucket=-3)])
    spine = Spine(work, COUNTS, [layer(work, "0", old), layer(work, "1", counts({1: 12}, bucket=9))], ALL)
    assert everywhere_of(spine, [1]) == [(1, -3, 11), (1, 5, 10), (1, 9, 12)]
    assert everywhere_of(spine, [2]) == [(2, 5, 20)]
    assert everywhere_of(spine, [3]) == []


def test_a_key_that_moved_is_found_where_it_is_and_not_where_it_was(work):
    moved = pa.concat_tables([counts({1: None}, bucket=5, live=False), counts({1: 11}, bucket=6)])
    back = pa.concat_tables([counts({1: None}, bucket=6, live=False), counts({1: 12}, bucket=5)])
    layers = [layer(work, "0", counts({1: 10}, bucket=5)), layer(work, "1", moved), layer(work, "2", back)]
    at = [everywhere_of(Spine(work, COUNTS, layers[: n + 1], ALL), [1]) for n in range(3)]
    assert at == [[(1, 5, 10)], [(1, 6, 11)], [(1, 5, 12)]]


def test_a_tombstone_hides_its_own_bucket_and_no_other(work):
    rows = pa.concat_tables([counts({1: b, 2: b}, bucket=b) for b in (1, 2, 3)])
    layers = [layer(work, "0", rows), layer(work, "1", counts({1: None}, bucket=2, live=False))]
    spine = Spine(work, COUNTS, layers, ALL)
    assert everywhere_of(spine, [1]) == [(1, 1, 1), (1, 3, 3)]
    assert everywhere_of(spine, [2]) == [(2, 1, 1), (2, 2, 2), (2, 3, 3)]


def test_a_null_value_is_found(work):
    spine = Spine(work, COUNTS, [layer(work, "0", counts({1: None}))], ALL)
    assert everywhere_of(spine, [1]) == [(1, 0, None)]


changes = st.dictionaries(
    st.tuples(st.integers(-2, 3), st.integers(0, 40)), st.none() | st.integers(0, 999), max_size=60
)
floors = st.none() | st.integers(-3, 5)
splits = st.lists(st.integers(1, 4095), max_size=3, unique=True).map(lambda inner: [0, *sorted(inner), 4096])


def written(root, number, rows, bits, borders, rows_max):
    """A layer of {(bucket, key): n, or None for a tombstone}, each task writing the rows of its slots."""
    tables = [COUNTS.changes.empty_table()]
    for live in (True, False):
        for bucket in sorted({bucket for bucket, _ in rows}):
            mine = {k: n for (b, k), n in rows.items() if b == bucket and (n is not None) == live}
            tables.append(counts(mine, bucket=bucket, live=live))
    table = cut_to(pa.concat_tables(tables).combine_chunks(), bits)
    slot = (table["_h"].to_numpy() >> 52) + 2048
    runs = []
    for task, (lo, hi) in enumerate(pairwise(borders)):
        part = table.filter(pa.array((slot >= lo) & (slot < hi)))
        runs += layer(root, f"{number}/{task}", part, slots=(lo, hi), rows_max=rows_max).runs
    return LayerInfo(number, number, tuple(runs))


@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=settings().max_examples * 3 // 10)
@given(
    layers=st.lists(changes, max_size=5),
    floor=floors,
    split=st.tuples(splits, splits),
    rows_max=st.integers(1, 60),
    sought=st.lists(st.integers(0, 50), unique=True),
)
def test_any_layers_equal_a_dictionary(tmp_path_factory, bits, layers, floor, split, rows_max, sought):
    root = tmp_path_factory.mktemp("everywhere")
    infos = [written(root, number, rows, bits, split[0], rows_max) for number, rows in enumerate(layers)]
    model = {place: n for rows in layers for place, n in rows.items()}
    model = {place: n for place, n in model.items() if n is not None and (floor is None or place[0] >= floor)}
    slot = dict(zip(range(51), ((mixed(range(51)) & -(1 << (64 - bits))) >> 52) + 2048, strict=True))
    got, rows_counted = [], 0
    for lo, hi in pairwise(split[1]):
        spine = Spine(root, COUNTS, infos, (lo, hi), floor)
        got += everywhere_of(spine, [k for k in sought if lo <= slot[k] < hi], bits)
        rows_counted += spine.count(2)
    assert sorted(got) == sorted((k, b, n) for (b, k), n in model.items() if k in sought)
    low = -2 if floor is None else floor
    assert rows_counted == sum(low <= bucket <= 2 for rows in layers for bucket, _ in rows)


@pytest.mark.parametrize("bits", BITS)
def test_many_keys_in_many_buckets_equal_a_dictionary(work, bits):
    rng = np.random.default_rng(7)
    layers, model = [], {}
    for number in range(4):
        places = np.unique(rng.integers(0, [12, 300], (800, 2)), axis=0).tolist()
        dead = rng.random(len(places)) < 0.25
        rows = {(b, k): None if d else number * 1000 + k for (b, k), d in zip(places, dead, strict=True)}
        layers.append(written(work, number, rows, bits, [0, 1000, 4096], 150))
        model |= rows
    spine = Spine(work, COUNTS, layers, ALL, floor=2)
    expected = sorted((k, b, n) for (b, k), n in model.items() if n is not None and b >= 2)
    assert sorted(everywhere_of(spine, range(400), bits)) == expected


def test_a_large_run_is_searched_by_guessing_and_gives_the_same(work):
    keys = range(70_000)
    big = pa.concat_tables([counts({k: k for k in keys}), counts({k: -k for k in keys[::7]}, bucket=1)])
    spine = Spine(work, COUNTS, [layer(work, "0", big)], ALL)
    sought = [0, 7, 8, 69_999, 70_000]
    expected = [(0, 0, 0), (0, 1, 0), (7, 0, 7), (7, 1, -7), (8, 0, 8), (69_999, 0, 69_999)]
    assert sorted(everywhere_of(spine, sought)) == expected
    assert spine.rows_examined == len(expected)


def test_runs_that_a_bloom_filter_excludes_are_not_searched(work, searches):
    first = pa.concat_tables([counts({k: k for k in range(1000)}, bucket=b) for b in range(3)])
    layers = [
        layer(work, "0", first),
        layer(work, "1", counts({k: k for k in range(1000, 2000)})),
        layer(work, "2", counts({5: 50}, bucket=1)),
    ]
    spine = Spine(work, COUNTS, layers, ALL)
    assert everywhere_of(spine, [5]) == [(5, 0, 5), (5, 1, 50), (5, 2, 5)]
    assert (spine.runs_opened, spine.runs_skipped_by_bloom) == (3, 1)
    # Three buckets of the first layer, one of the last; the rows of each were compared, also the hidden one.
    assert searches == [1, 1, 1, 1]
    assert spine.rows_examined == 4


def test_a_key_that_is_nowhere_is_searched_for_nowhere(work, searches):
    layers = [layer(work, str(e), counts({k: k for k in range(e, 3000, 3)}, bucket=e)) for e in range(3)]
    spine = Spine(work, COUNTS, layers, ALL)
    assert everywhere_of(spine, [10**6]) == []
    assert spine.runs_opened == spine.runs_skipped_by_bloom == 3
    assert (searches, spine.rows_examined) == ([], 0)


def test_only_needles_that_the_bloom_filter_lets_through_are_searched_for(work, searches):
    spine = Spine(work, COUNTS, [layer(work, "0", counts({k: k for k in range(1000)}))], ALL)
    sought = [3, *range(10**6, 10**6 + 500)]
    assert everywhere_of(spine, sought) == [(3, 0, 3)]
    # About 2% of those that are not there pass by mistake.
    assert len(searches) == 1
    assert searches[0] < 30
    assert (spine.runs_skipped_by_bloom, spine.rows_examined) == (0, 1)


def test_a_bloom_filter_is_asked_once_a_needle_however_many_buckets_there_are(work, monkeypatch):
    asked = []
    possibly_in = Probes.possibly_in

    def spied(self, bloom):
        asked.append(len(self.high))
        return possibly_in(self, bloom)

    rows = pa.concat_tables([counts({k: b for k in range(20)}, bucket=b) for b in range(30)])
    spine = Spine(work, COUNTS, [layer(work, "0", rows)], ALL)
    monkeypatch.setattr(Probes, "possibly_in", spied)
    assert len(everywhere_of(spine, range(20))) == 600
    assert asked == [20]


def test_runs_below_the_floor_are_not_opened(work, searches):
    old = pa.concat_tables([counts({1: b}, bucket=b) for b in (0, 1, 2)])
    mixed_ages = pa.concat_tables([counts({1: 10 + b}, bucket=b) for b in (2, 3)])
    layers = [layer(work, "0", old), layer(work, "1", mixed_ages), layer(work, "2", counts({1: 9}, bucket=9))]
    (work / layers[0].runs[0].path).unlink()
    spine = Spine(work, COUNTS, layers, ALL, floor=3)
    assert everywhere_of(spine, [1]) == [(1, 3, 13), (1, 9, 9)]
    assert (spine.runs_opened, spine.runs_skipped_by_bloom, spine.rows_examined) == (2, 0, 2)
    # Of a run that reaches over the floor, only what is above is searched.
    assert searches == [1, 1]
    with pytest.raises(LostFileError, match=r"lost file: 0-0\.arrow"):
        everywhere_of(Spine(work, COUNTS, layers, ALL, floor=2), [1])


def test_runs_of_other_slots_are_not_opened(work):
    info = layer(work, "0", counts({k: k for k in range(3000)}), rows_max=700)
    first, *others = info.runs
    for run in others:
        (work / run.path).unlink()
    spine = Spine(work, COUNTS, [info], (first.slot_lo, first.slot_hi))
    slot = (mixed(range(3000)) >> 52) + 2048
    mine = np.flatnonzero(slot < first.slot_hi).tolist()
    assert sorted(everywhere_of(spine, mine)) == [(k, 0, k) for k in mine]
    assert spine.runs_opened == 1


def test_runs_of_slots_that_no_needle_is_of_stay_closed(work):
    info = layer(work, "0", counts({k: k for k in range(3000)}), rows_max=700)
    spine = Spine(work, COUNTS, [info], ALL)
    assert everywhere_of(spine, [5]) == [(5, 0, 5)]
    # As in a lookup by bucket; what was not asked of a filter was not excluded by one.
    assert (spine.runs_opened, spine.runs_skipped_by_bloom) == (1, 0)


def test_no_needles_open_nothing(work):
    info = layer(work, "0", counts({1: 1}))
    (work / info.runs[0].path).unlink()
    spine = Spine(work, COUNTS, [info], ALL)
    found = spine.lookup_everywhere(np.zeros(0, np.int64), [pa.array([], pa.int64())])
    assert (len(found.needle), len(found.bucket)) == (0, 0)
    assert found.values.schema == COUNTS.values
    assert spine.runs_opened == 0


def test_an_empty_spine_has_nothing(work):
    for layers in ([], [LayerInfo(0, 3, ())]):
        spine = Spine(work, COUNTS, layers, ALL, floor=3)
        assert everywhere_of(spine, [1, 2]) == []
        assert spine.count(100) == 0


def test_a_state_that_holds_keys_alone_answers_with_buckets(work):
    schema = StateSchema(COUNTS.keys, pa.schema([]))
    rows = counts({1: 0, 2: 0}, bucket=4).drop_columns(["n"])
    spine = Spine(work, schema, [layer(work, "0", rows, schema)], ALL)
    found = spine.lookup_everywhere(mixed([1]), [pa.array([1])])
    assert (found.needle.tolist(), found.bucket.tolist()) == ([0], [4])
    assert found.values.num_columns == 0


def test_needles_in_no_order_or_of_other_slots_are_refused(work):
    needles = needles_of(counts(dict.fromkeys(range(100), 0)))
    h, k = needles["_h"].to_numpy(), needles["k"].combine_chunks()
    with pytest.raises(HoldfastError, match="not sorted"):
        Spine(work, COUNTS, [], ALL).lookup_everywhere(h[::-1], [k.take(pa.array(np.arange(100)[::-1]))])
    with pytest.raises(HoldfastError, match="slots"):
        Spine(work, COUNTS, [], (0, 100)).lookup_everywhere(h, [k])


def test_state_of_another_schema_is_refused(work):
    info = layer(work, "0", counts({1: 1}))
    spine = Spine(work, StateSchema(COUNTS.keys, pa.schema([("n", pa.float64())])), [info], ALL)
    with pytest.raises(StateSchemaError, match="other names or types"):
        everywhere_of(spine, [1])
    with pytest.raises(StateSchemaError, match="other names or types"):
        spine.count(0)


def test_rows_are_counted_as_they_were_written(work):
    old = pa.concat_tables([counts({1: b, 2: b, 3: b}, bucket=b) for b in (0, 1, 5)])
    new = pa.concat_tables([counts({1: None}, bucket=1, live=False), counts({2: 9}, bucket=5)])
    layers = [layer(work, "0", old), layer(work, "1", new)]
    assert [Spine(work, COUNTS, layers, ALL).count(last) for last in (-1, 0, 1, 4, 5, 99)] == [
        0,
        3,
        7,
        7,
        11,
        11,
    ]
    above = Spine(work, COUNTS, layers, ALL, floor=1)
    assert [above.count(last) for last in (-1, 0, 1, 5)] == [0, 0, 4, 8]


def test_counting_opens_no_run_that_has_no_bucket_asked_for(work):
    layers = [layer(work, str(b), counts({1: 1, 2: 2}, bucket=b)) for b in (0, 3, 6)]
    (work / layers[0].runs[0].path).unlink()
    (work / layers[2].runs[0].path).unlink()
    assert Spine(work, COUNTS, layers, ALL, floor=1).count(5) == 2


def test_every_split_of_the_slots_counts_each_row_once(work):
    rows = pa.concat_tables([counts({k: k for k in range(b, 2000, 2)}, bucket=b) for b in range(3)])
    layers = [layer(work, "0", rows, rows_max=700), layer(work, "1", counts({k: 0 for k in range(50)}))]
    for borders in ([0, 4096], [0, 1, 1000, 1001, 4096], list(range(0, 4097, 512))):
        spines = [Spine(work, COUNTS, layers, slots) for slots in pairwise(borders)]
        assert sum(spine.count(1) for spine in spines) == 1000 + 1000 + 50
